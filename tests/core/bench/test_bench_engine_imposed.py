"""Imposed acceptance: files, the head that fits a trace, and walks as long as they are to be."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.bench.engine.acceptance import Trace, read_trace
from jetflow_core.bench.engine.imposed import ImposedAcceptance, ImposedScores
from jetflow_core.bench.engine.imposed_trees import ImposedOnTrees
from jetflow_core.bench.engine.model import head_model
from jetflow_core.rounds import AcceptedBatch, TorchRoundOps, TreeBatch
from torch.utils._python_dispatch import TorchDispatchMode

VOCAB, DEPTH, WIDTH = 60, 6, 5
CPU = torch.device("cpu")
AT_LEAST = (0.95, 0.88, 0.8, 0.73, 0.66, 0.6)
TRACE = Trace(name="some", at_least=AT_LEAST, budget=32)


def _trees(seed: int, budgets: list[int], padding: int = 0) -> tuple[TreeBatch, torch.Tensor]:
    """Trees of some requests, and how many rows of each take part; 0: a padding request."""
    draw = torch.Generator().manual_seed(seed)
    requests = len(budgets)
    tokens = torch.stack([
        torch.randperm(VOCAB, generator=draw)[: DEPTH * WIDTH].view(DEPTH, WIDTH)
        for _ in range(requests)
    ])  # fmt: skip
    shares = torch.tensor([0.75, 0.08, 0.06, 0.04, 0.03])
    # The likeliest candidate is not always the first one, so paths skip rows.
    order = torch.rand(requests, DEPTH, WIDTH, generator=draw).argsort(-1)
    scores = shares[order].log()[:, :, None]
    counts = torch.tensor(budgets, dtype=torch.int32)
    trees = TorchRoundOps().build_tree(
        tokens.int(), scores, torch.zeros(requests, dtype=torch.int32), counts.clamp(min=1),
        torch.full((requests,), 7, dtype=torch.int32), capacity=max(budgets) + padding,
    )  # fmt: skip
    return trees, trees.num_nodes.masked_fill(counts == 0, 0).int()


def _walk(trees: TreeBatch, counts: torch.Tensor, picks: torch.Tensor) -> AcceptedBatch:
    return TorchRoundOps().accept_walk(trees.tokens, trees.parents, counts, picks, max_depth=DEPTH)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    budgets=st.lists(st.integers(0, 24), min_size=1, max_size=4).filter(any),
    at_least=st.lists(st.floats(0, 1), min_size=1, max_size=DEPTH),
)
def test_a_walk_is_as_long_as_it_is_to_be_or_as_its_tree_is_deep(
    seed: int, budgets: list[int], at_least: list[float]
) -> None:
    trees, counts = _trees(seed, budgets, padding=seed % 9)
    imposed = ImposedAcceptance(
        slots=len(budgets), rounds=3, most_rows=32, vocab_size=VOCAB, device=CPU
    )
    imposed.restart(sorted(at_least, reverse=True), seed)
    picks = torch.randint(VOCAB, trees.tokens.shape, dtype=torch.int32)
    for turn in range(4):
        found = imposed(trees, counts, picks)
        assert found.dtype == torch.int32 and found.shape == picks.shape
        paths = _walk(trees, counts, found)
        for request, count in enumerate(counts.tolist()):
            deepest = int(trees.depths[request, :count].max()) if count else 0
            wanted = int(imposed.wanted[request, turn % 3])
            assert paths.accepted[request] == min(wanted, deepest)
            # What is off the path stays the target's own, and so is the end where it can be.
            off = set(range(count)) - set(paths.rows[request].tolist())
            assert all(found[request, row] == picks[request, row] for row in off)


def test_it_is_on_average_what_the_distribution_says_and_repeats_by_seed() -> None:
    trees, counts = _trees(3, [30, 30])
    lengths: list[list[int]] = []
    rows: set[tuple[int, ...]] = set()
    for seed in (1, 2, 1):
        imposed = ImposedAcceptance(slots=2, rounds=50, most_rows=30, vocab_size=VOCAB, device=CPU)
        imposed.restart(AT_LEAST, seed)
        kept: list[int] = []
        for _ in range(50):
            paths = _walk(trees, counts, imposed(trees, counts, torch.zeros_like(trees.tokens)))
            kept += paths.accepted.tolist()
            rows |= {tuple(line) for line in paths.rows.tolist()}
        lengths.append(kept)
    assert lengths[0] == lengths[2] != lengths[1]
    depths = trees.depths.amax(1)
    assert int(depths.min()) == DEPTH
    for kept in lengths:
        # Quantiles: no probability is missed by more than one draw of the hundred.
        for k, wanted in enumerate(AT_LEAST, 1):
            assert abs(sum(length >= k for length in kept) / 100 - wanted) <= 0.01 + 1e-9
    gaps = [np.diff([row for row in line if row >= 0]) for line in rows]
    assert any((gap > 1).any() for gap in gaps), "no path skips a row"


def test_the_pick_at_the_end_is_no_child_even_if_the_target_picked_one() -> None:
    trees, counts = _trees(5, [24])
    imposed = ImposedAcceptance(slots=1, rounds=8, most_rows=24, vocab_size=VOCAB, device=CPU)
    for token in range(VOCAB):
        imposed.restart(AT_LEAST, token)
        picks = torch.full_like(trees.tokens, token)
        paths = _walk(trees, counts, imposed(trees, counts, picks))
        assert int(paths.accepted[0]) == int(imposed.wanted[0, 0])


def test_what_a_chosen_budgets_trees_keep_is_what_their_budgets_would() -> None:
    """Scores that the engine has changed decide which trees grow, and not what they are worth."""
    model = head_model(TRACE, depth=DEPTH, width=WIDTH)
    table = torch.from_numpy(model.log_probs)
    given: Any = _Given()
    scores = ImposedScores(given, table)
    tokens, _ = scores.propose(given)
    roots, rounds = torch.zeros(2, dtype=torch.int32), 60
    for budget in (12, 32):
        trees = TorchRoundOps().build_tree(
            tokens, (0.9 * table)[None, :, None].expand(2, -1, -1, -1), roots,
            torch.full((2,), budget, dtype=torch.int32), roots + 7, capacity=40,
        )  # fmt: skip
        counts = trees.num_nodes.masked_fill(torch.tensor([False, True]), 0)
        imposed = ImposedOnTrees(
            scores, slots=2, rounds=rounds, most_rows=40, vocab_size=VOCAB, device=CPU
        )
        imposed.restart(model.per_mass(), 3)
        kept = []
        for _ in range(rounds):
            picks = imposed(trees, counts, torch.zeros_like(trees.tokens))
            kept.append(_walk(trees, counts, picks).accepted.tolist())
        own = scores.of_rows(trees)[0, :budget].exp()
        depths = trees.depths[0, :budget]
        for k, per_mass in enumerate(model.per_mass(), 1):
            wanted = min(per_mass * float(own[depths == k].sum()), 1.0)
            found = sum(line[0] >= k for line in kept) / rounds
            assert abs(found - wanted) <= 1 / rounds + 1e-9
        assert not any(line[1] for line in kept)
    exact = model.tree(TRACE.budget)
    mass = np.exp(exact.scores)[exact.depths == 2].sum()
    assert model.per_mass()[1] * mass == pytest.approx(AT_LEAST[1])


class _Given:
    """Always proposes the same tokens."""

    depth = DEPTH

    def propose(self, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = torch.arange(2 * DEPTH * WIDTH).view(2, DEPTH, WIDTH) % VOCAB
        return tokens.int(), torch.zeros(2, DEPTH, 1, WIDTH)


class NoWait(TorchDispatchMode):
    """Fails where something looks at values on the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0].strip("_")
        assert not name.startswith(("local_scalar", "nonzero", "is_nonzero", "lift_fresh")), name
        return func(*args, **(kwargs or {}))


def test_it_waits_for_nothing() -> None:
    trees, counts = _trees(5, [24, 0, 3])
    imposed = ImposedAcceptance(slots=3, rounds=8, most_rows=24, vocab_size=VOCAB, device=CPU)
    imposed.restart(AT_LEAST, 0)
    before = [tensor.data_ptr() for tensor in imposed.changes]
    with NoWait():
        imposed(trees, counts, trees.tokens)
    assert [tensor.data_ptr() for tensor in imposed.changes] == before
    assert [int(tensor) for tensor in imposed.changes] == [1]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"vocab_size": 24}, "vocabulary of 24"),
        ({"slots": 0}, "slots 0"),
        ({"rounds": 0}, "rounds 0"),
    ],
)
def test_what_cannot_be_imposed_is_refused(changes: dict[str, int], word: str) -> None:
    given = {"slots": 1, "rounds": 1, "most_rows": 24, "vocab_size": VOCAB, **changes}
    with pytest.raises(ValueError, match=word):
        ImposedAcceptance(**given, device=CPU)  # type: ignore[arg-type]


def test_the_tables_tree_is_expected_to_give_the_traces_tau() -> None:
    model = head_model(TRACE, depth=DEPTH, width=8)
    assert 1 + model.tree(TRACE.budget).expected_length() == pytest.approx(TRACE.tau, abs=1e-3)
    assert model.tree(TRACE.budget).max_depth == DEPTH
    probabilities = np.exp(model.log_probs)
    assert (np.diff(probabilities, axis=1) <= 0).all() and (probabilities.sum(1) <= 1).all()
    assert model.at_least(TRACE.budget) == AT_LEAST
    taus = [sum(model.at_least(budget)) for budget in (1, 4, 16, 32, 64, 256)]
    assert taus[0] == 0 and taus == sorted(taus) and taus[-1] > taus[3]
    for budget in (4, 64):
        found = model.at_least(budget)
        assert all(0 <= p <= 1 for p in found)
        assert list(found) == sorted(found, reverse=True)


def test_a_shorter_draft_cuts_the_distribution() -> None:
    model = head_model(TRACE, depth=2, width=8)
    assert model.at_least(TRACE.budget) == AT_LEAST[:2] and model.log_probs.shape == (2, 8)
    with pytest.raises(ValueError, match="depth 7 is out of range"):
        head_model(TRACE, depth=7, width=8)
    with pytest.raises(ValueError, match="width 0"):
        head_model(TRACE, depth=2, width=0)


@pytest.fixture
def written(tmp_path: Path) -> Callable[[Any], Path]:
    def write(raw: Any) -> Path:
        path = tmp_path / "acceptance.json"
        path.write_text(raw if isinstance(raw, str) else json.dumps(raw))
        return path

    return write


def test_a_trace_is_read(written: Callable[[Any], Path]) -> None:
    path = written({"sets": {"a": {"tau": 2.3, "p_accept_at_least": [0.8, 0.5]}}})
    assert read_trace(path, "a") == Trace(name="a", at_least=(0.8, 0.5), budget=128)


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        ("{", "no JSON"),
        ([], "no object 'sets'"),
        ({"sets": {"b": {}}}, "'a' is not in .*: it has b"),
        ({"sets": {"a": {"tau": 1}}}, "no list 'p_accept_at_least'"),
        ({"sets": {"a": {"tau": 1, "p_accept_at_least": []}}}, "is empty"),
        ({"sets": {"a": {"tau": 3, "p_accept_at_least": [2]}}}, "holds 2"),
        ({"sets": {"a": {"tau": 2, "p_accept_at_least": [0.4, 0.6]}}}, "rises"),
        ({"sets": {"a": {"tau": 5, "p_accept_at_least": [0.6]}}}, "tau is 5, .* give 1.600"),
        ({"sets": {"a": {"tau": 1.6, "p_accept_at_least": [0.6], "budget": 1}}}, "budget 1"),
    ],
)
def test_a_file_that_says_nothing_sensible_is_refused(
    written: Callable[[Any], Path], raw: Any, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        read_trace(written(raw), "a")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nothing\.json"):
        read_trace(tmp_path / "nothing.json", "a")
