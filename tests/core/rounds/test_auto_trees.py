"""One budget for all trees of a round, and what is learnt of them: as slow references say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.rounds import TorchRoundOps, TreeBatch
from jetflow_core.rounds.auto.batch_trees import POINTS, BatchTrees
from jetflow_core.rounds.auto.estimates import HALF_LIFE, PRIOR, RANKS, Acceptance
from jetflow_tree import Candidates, share_budget
from torch import Tensor

DEPTH, WIDTH, CAPACITY = 4, 3, 16
CPU = torch.device("cpu")


def _tables(seed: int, requests: int, parents: int, grain: float) -> tuple[Tensor, Tensor]:
    """Candidates with many ties and some that are never a node."""
    draw = np.random.default_rng(seed)
    tokens = np.stack([
        np.stack([draw.permutation(40)[:WIDTH] for _ in range(DEPTH)]) for _ in range(requests)
    ])  # fmt: skip
    shape = (requests, DEPTH, parents, WIDTH)
    scores = -np.round(draw.exponential(1.0, shape) / grain) * grain - np.log(WIDTH)
    scores[draw.random(shape) < 0.1] = -np.inf
    return torch.from_numpy(tokens).int(), torch.from_numpy(scores)


def _grown(tokens: Tensor, scores: Tensor, capacity: int = CAPACITY) -> TreeBatch:
    requests = tokens.shape[0]
    return TorchRoundOps().build_tree(
        tokens, scores, torch.zeros(requests, dtype=torch.int32),
        torch.full((requests,), capacity, dtype=torch.int32),
        torch.full((requests,), 9, dtype=torch.int32), capacity=capacity,
    )  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    live=st.lists(st.booleans(), min_size=1, max_size=4).filter(any),
    parents=st.sampled_from([1, WIDTH]),
    grain=st.sampled_from([1.0, 1e-9]),
    extra=st.integers(0, 4 * CAPACITY),
    capacity=st.sampled_from([2, 5, CAPACITY]),
)
def test_the_batchs_rows_go_where_one_heap_puts_them(
    seed: int, live: list[bool], parents: int, grain: float, extra: int, capacity: int
) -> None:
    tokens, scores = _tables(seed, len(live), parents, grain)
    trees = _grown(tokens, scores, capacity)
    batch = BatchTrees.empty(DEPTH, CPU)
    batch.total.fill_(sum(live) + extra)
    counts = batch.counts(trees, torch.tensor(live), deepest=DEPTH)
    numbers = [i for i, alive in enumerate(live) if alive]
    tables = [Candidates(tokens[i].long().numpy(), scores[i].numpy()) for i in numbers]
    roots = [0] * len(numbers)
    for rows, promise in zip(
        [*(n * len(numbers) for n in POINTS), int(batch.total)], batch.promise.tolist(), strict=True
    ):
        wanted = share_budget(roots, tables, rows, limits=[capacity] * len(numbers))
        mass = sum(float(np.exp(tree.scores).sum()) for tree in wanted)
        assert promise == pytest.approx(mass / len(numbers))
    for number, tree in zip(numbers, wanted, strict=True):
        rows = int(counts[number])
        assert rows == tree.num_nodes
        assert trees.tokens[number, :rows].tolist() == tree.tokens.tolist()
    assert all(counts[i] == 0 for i, alive in enumerate(live) if not alive)
    assert counts.dtype == torch.int32


def _walk(trees: TreeBatch, counts: Tensor, seed: int) -> Tensor:
    picks = torch.from_numpy(np.random.default_rng(seed).integers(0, 40, trees.tokens.shape))
    # Half of the rows pick one of their children, so that walks come about.
    for request, row in np.argwhere(trees.parents.numpy() >= 0):
        if (request + row + seed) % 2:
            picks[request, trees.parents[request, row]] = trees.tokens[request, row]
    paths = TorchRoundOps().accept_walk(
        trees.tokens, trees.parents, counts, picks.int(), max_depth=DEPTH
    )
    return paths.rows


def _learnt_slowly(
    sums: np.ndarray, tokens: Tensor, scores: Tensor, trees: TreeBatch, counts: Tensor,
    paths: Tensor,
) -> np.ndarray:  # fmt: skip
    sums = sums * 0.5 ** (int((counts > 0).sum()) / HALF_LIFE)
    for request in range(len(tokens)):
        path = [row for row in paths[request].tolist() if row >= 0] if counts[request] else []
        place = {0: 0}
        for row in range(1, int(counts[request])):
            depth, parent = int(trees.depths[request, row]), int(trees.parents[request, row])
            options = tokens[request, depth - 1].tolist()
            place[row] = options.index(int(trees.tokens[request, row]))
            if parent in path:
                above = place[parent] if scores.shape[2] > 1 else 0
                cell = (depth - 1, min(place[row], RANKS - 1))
                sums[0][cell] += float(scores[request, depth - 1, above, place[row]].exp())
                sums[1][cell] += row in path
    return sums


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    budgets=st.lists(st.integers(0, CAPACITY), min_size=1, max_size=3),
    parents=st.sampled_from([1, WIDTH]),
)
def test_what_is_offered_and_picked_is_counted_by_depth_and_rank(
    seed: int, budgets: list[int], parents: int
) -> None:
    acceptance = Acceptance.empty(DEPTH + 1, CPU)
    sums = np.zeros((2, DEPTH + 1, RANKS))
    for turn in range(2):
        tokens, scores = _tables(seed + turn, len(budgets), parents, 1e-9)
        trees = _grown(tokens, scores)
        counts = torch.minimum(torch.tensor(budgets), trees.num_nodes).int()
        paths = _walk(trees, counts, seed)
        acceptance.learn(tokens, scores, trees, counts, paths)
        sums = _learnt_slowly(sums, tokens, scores, trees, counts, paths)
    assert np.allclose(acceptance.stated.numpy(), sums[0])
    assert np.allclose(acceptance.picked.numpy(), sums[1])


def test_scores_are_believed_as_far_as_they_were_right() -> None:
    acceptance = Acceptance.empty(2, CPU)
    scores = torch.tensor([[[[0.5, 0.3]], [[0.6, 0.2]]]], dtype=torch.float64).log()
    assert torch.equal(acceptance.ratios(), torch.ones(2, RANKS, dtype=torch.float64))
    assert torch.allclose(acceptance.calibrated(scores), scores)
    acceptance.stated[0, :2] = torch.tensor([400.0, 240.0])
    acceptance.picked[0, :2] = torch.tensor([200.0, 480.0])
    ratios = acceptance.ratios()
    whole = (680 + PRIOR) / (640 + PRIOR)
    assert ratios[0, 0] == pytest.approx((200 + PRIOR * whole) / (400 + PRIOR))
    found = acceptance.calibrated(scores).exp()
    assert found[0, 0, 0, 0] == pytest.approx(0.25, rel=0.05)
    assert found[0, 0, 0, 1] == pytest.approx(0.6, rel=0.05)
    assert torch.allclose(found[0, 1], scores[0, 1].exp())
    # More than all there is cannot be meant.
    acceptance.picked[0] *= 10
    assert acceptance.calibrated(scores).exp()[0, 0].sum() == pytest.approx(1.0)
    acceptance.forget()
    assert torch.allclose(acceptance.calibrated(scores), scores)


def test_what_is_out_of_contract_stays_so_and_never_stays_never() -> None:
    acceptance = Acceptance.empty(1, CPU)
    acceptance.stated[0, 0] = 100.0
    scores = torch.tensor([[[[torch.nan, -1.0]]], [[[0.5, -1.0]]], [[[-torch.inf, -1.0]]]])
    found = acceptance.calibrated(scores)
    assert found[0].isnan().any() and found[1, 0, 0, 0] == 0.5
    assert found[2, 0, 0, 0] == -torch.inf and found[2, 0, 0, 1] <= 0
    none = acceptance.calibrated(torch.full((1, 1, 1, 2), -torch.inf))
    assert (none == -torch.inf).all()
