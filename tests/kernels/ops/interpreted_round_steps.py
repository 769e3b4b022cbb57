"""Interpreted, or on a CUDA device: every step of a round equals the one of core in torch."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jetflow_core.rounds import TorchRoundOps
from jetflow_kernels.ops import RoundSteps, round_steps
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device")

CORE = TorchRoundOps()
TREE = ("tokens", "parents", "depths", "scores", "ancestors", "positions", "num_nodes", "valid")
PATH = ("rows", "tokens", "accepted", "correction")
a_few = settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
seeds = st.integers(0, 2**32)


class Draws:
    """Random tensors on the default device."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        made = torch.randn(*shape, generator=self._generator, device="cpu")
        return made.to(torch.get_default_device())

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        made = torch.randint(low, high, shape, generator=self._generator, device="cpu")
        return made.int().to(torch.get_default_device())

    def order(self, count: int) -> Tensor:
        made = torch.randperm(count, generator=self._generator, device="cpu")
        return made.int().to(torch.get_default_device())

    def parents(self, count: int, capacity: int) -> Tensor:
        above = [int(self.integers(0, row)) for row in range(1, count)]
        return int32(-1, *above, *[-1] * (capacity - max(count, 1)))


def int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def assert_same(found: Any, wanted: Any, names: tuple[str, ...]) -> None:
    for name in names:
        one, other = getattr(found, name), getattr(wanted, name)
        assert one.dtype == other.dtype, name
        assert torch.equal(one, other), name


def all_equal(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> bool:
    return all(
        one.dtype == other.dtype and torch.equal(one, other)
        for one, other in zip(found, wanted, strict=True)
    )


@given(
    seed=seeds, rows=st.integers(1, 3), vocabulary=st.sampled_from([9, 100]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
@a_few
def test_the_greatest_logits(seed: int, rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    draws = Draws(seed)
    # All different in either type: of equal ones torch may choose any.
    logits = torch.stack([draws.order(vocabulary) for _ in range(rows)]).to(dtype) / 8 - 3
    for count in (1, 5):
        found, wanted = (ops.depth_topk(logits, count) for ops in (round_steps, CORE))
        assert torch.equal(found.tokens, wanted.tokens)
        assert found.tokens.dtype == wanted.tokens.dtype
        torch.testing.assert_close(found.log_probs, wanted.log_probs, rtol=1e-6, atol=1e-6)


def test_a_row_that_is_no_distribution_has_no_scores() -> None:
    logits = torch.tensor([[0.0, torch.nan], [0.0, torch.inf], [-torch.inf] * 2, [1.0, 1.0]])
    for ops in (round_steps, CORE):
        scores = ops.depth_topk(logits, 2).log_probs
        assert scores.isnan().all(1).tolist() == [True, True, True, False]


@given(seed=seeds, depth=st.integers(0, 4), heat=st.sampled_from([1.0, 0.5, 1.5]))
@a_few
def test_candidates_along_paths(seed: int, depth: int, heat: float) -> None:
    draws, requests, width, pool = Draws(seed), 2, 3, 7
    tokens = torch.stack([draws.order(30) for _ in range(requests * (depth + 1))])
    tokens = tokens.view(requests, depth + 1, 30)
    base = (2.0 * draws.normal(requests, depth, pool)).log_softmax(-1) - 0.1
    given_to = (
        tokens[:, 0, :width], draws.normal(requests, width).log_softmax(-1) - 0.1,
        tokens[:, 1:, :pool], base, draws.normal(requests, depth, pool, pool),
        torch.full((requests,), heat, dtype=torch.float64),
    )  # fmt: skip
    found, wanted = (ops.path_candidates(*given_to) for ops in (round_steps, CORE))
    assert torch.equal(found[0], wanted[0])
    assert found[0].dtype == wanted[0].dtype
    torch.testing.assert_close(found[1].double(), wanted[1], rtol=1e-5, atol=1e-5)


@given(
    seed=seeds, capacity=st.integers(1, 12), by_parent=st.booleans(), depth=st.integers(0, 4),
    double=st.booleans(), absent=st.booleans(),
)  # fmt: skip
@a_few
def test_trees_and_their_words(
    seed: int, capacity: int, by_parent: bool, depth: int, double: bool, absent: bool
) -> None:
    draws, width, requests = Draws(seed), 3, 3
    tokens = torch.empty(requests, depth, width, dtype=torch.int32)
    for level in tokens.view(-1, width):
        level.copy_(draws.order(9)[:width])
    # Halves make ties.
    shape = (requests, depth, width if by_parent else 1, width)
    table = (draws.integers(-4, 1, *shape) / 2).to(torch.float64 if double else torch.float32)
    if absent:
        # As a round cuts trees that could not be kept: everything from a depth on.
        table[0, depth // 2 :] = -torch.inf
    given_to = (tokens, table, int32(3, 4, 5), int32(capacity, 1, capacity + 1), int32(5, 0, 9))
    found, wanted = (ops.build_tree(*given_to, capacity=capacity) for ops in (round_steps, CORE))
    assert_same(found, wanted, TREE)
    packed = [ops.pack_ancestors(wanted.parents, wanted.num_nodes) for ops in (round_steps, CORE)]
    assert all_equal(*packed)


def test_words_of_what_is_no_tree() -> None:
    parents = int32(-1, 0, 2, -1, 1, 0, -1, -1, 0).view(3, 3)
    found, wanted = (
        ops.pack_ancestors(parents, int32(3, 3, 3)) for ops in (round_steps, CORE)
    )  # fmt: skip
    assert all_equal(found, wanted)
    assert found[1].tolist() == [False, False, False]


@given(seed=seeds, nodes=st.lists(st.integers(0, 7), min_size=1, max_size=3))
@a_few
def test_slots(seed: int, nodes: list[int]) -> None:
    draws, requests = Draws(seed), len(nodes)
    # Columns of a wider table, as a round looks at the pages in use.
    table = draws.integers(0, 50, requests, 6)[:, :4]
    given_to = (table, draws.integers(0, 14, requests), int32(*nodes))
    found, wanted = (
        ops.tree_slots(*given_to, capacity=7, page=4) for ops in (round_steps, CORE)
    )  # fmt: skip
    assert all_equal((found,), (wanted,))


def attention_case(seed: int, nodes: list[int], group: int, spare: int, dim: int) -> list[Tensor]:
    """Trees of these sizes behind random prefixes, NaN where nobody may look."""
    draws, page, width = Draws(seed), 16, 6
    requests, rows = len(nodes), sum(nodes) + spare
    prefix = draws.integers(0, 20, requests)
    table = draws.order(requests * width).view(requests, width)
    q = draws.normal(rows, 2 * group, dim)
    pools = torch.full((2, requests * width, page, 2, dim), torch.nan)
    words = torch.zeros(rows, 2, dtype=torch.int64)
    for request, (count, first) in enumerate(zip(nodes, accumulate([0, *nodes]), strict=False)):
        for place in range(int(prefix[request]) + count):
            at = (int(table[request, place // page]), place % page)
            pools[:, at[0], at[1]] = draws.normal(2, 2, dim)
        if count:
            packed, _ = CORE.pack_ancestors(draws.parents(count, 66)[None], int32(count))
            words[first : first + count] = packed[0, :count]
    starts = int32(*accumulate([0, *nodes]))
    return [q, pools[0], pools[1], table, starts, prefix, words]


@given(
    seed=seeds, nodes=st.lists(st.sampled_from([0, 1, 2, 5]), min_size=1, max_size=3),
    group=st.sampled_from([1, 3]), spare=st.integers(0, 2),
)  # fmt: skip
@settings(a_few, max_examples=4)
def test_attention_over_pages(seed: int, nodes: list[int], group: int, spare: int) -> None:
    if sum(nodes) + spare == 0:
        return
    given_to = attention_case(seed, nodes, group, spare, 64)
    wanted = CORE.tree_attention(*given_to)
    for ops in (round_steps, RoundSteps(cut="by_request")):
        found = ops.tree_attention(*given_to)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "nodes"), [(64, [66, 3]), (128, [5, 0, 17]), (256, [7])])
def test_attention_over_words_and_widths(dim: int, nodes: list[int]) -> None:
    given_to = attention_case(dim, nodes, 2, 1, dim)
    found, wanted = (ops.tree_attention(*given_to, scale=0.2) for ops in (round_steps, CORE))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-6)


def test_the_version_of_attention_is_told() -> None:
    given_to = attention_case(0, [2], 1, 0, 64)
    assert round_steps.attention_version(*given_to) == "triton"
    assert RoundSteps(attention="triton").attention_version(*given_to) == "triton"
    with pytest.raises((ValueError, RuntimeError), match="cuda"):
        # Float32, which the version in CUDA C++ does not take.
        RoundSteps(attention="cuda").attention_version(*given_to)
    with pytest.raises((ValueError, RuntimeError), match="cuda"):
        RoundSteps(attention="cuda").tree_attention(*given_to)


@given(
    seed=seeds, hot=st.lists(st.sampled_from([0.0, 0.7, 1.5]), min_size=1, max_size=3),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
@a_few
def test_picks(seed: int, hot: list[float], dtype: torch.dtype) -> None:
    draws, rows = Draws(seed), len(hot)
    logits = (draws.integers(-3, 3, rows, 11) / 2).to(dtype)
    logits[0, 4] = torch.nan
    assert all_equal(round_steps.pick_argmax(logits), CORE.pick_argmax(logits))
    keys = draws.integers(-(2**31), 2**31 - 1, rows).long() * (2**32 + 7)
    given_to = (logits, torch.tensor(hot), keys, int32(*range(rows)))
    assert all_equal(round_steps.pick_sampled(*given_to), CORE.pick_sampled(*given_to))


@given(seed=seeds, nodes=st.lists(st.integers(0, 8), min_size=1, max_size=3))
@a_few
def test_the_walk(seed: int, nodes: list[int]) -> None:
    draws, requests = Draws(seed), len(nodes)
    parents = torch.stack([draws.parents(max(count, 1), 8) for count in nodes])
    tokens, picks = (draws.integers(0, 3, requests, 8) for _ in "ab")
    for depth in (0, 2, 8):
        given_to = (tokens, parents, int32(*nodes), picks)
        found, wanted = (ops.accept_walk(*given_to, max_depth=depth) for ops in (round_steps, CORE))
        assert_same(found, wanted, PATH)


@given(seed=seeds, requests=st.integers(1, 3), idle=st.booleans(), width=st.sampled_from([0, 5]))
@a_few
def test_the_commit(seed: int, requests: int, idle: bool, width: int) -> None:
    draws, page, steps = Draws(seed), 4, 4
    pools = draws.normal(3, requests * 4, page, 2, 8)
    ours, theirs = list(pools.clone()), list(pools.clone())
    table = draws.order(requests * 4).view(requests, 4)
    prefix = draws.integers(0, 8, requests)
    rows = torch.full((requests, steps), -1, dtype=torch.int32)
    for request in range(requests):
        kept = [0, *sorted(draws.order(7)[: int(draws.integers(0, steps))].add(1).tolist())]
        rows[request, : len(kept)] = int32(*kept)
    if idle:
        # Nobody's: nothing moves, not even the root's row onto itself.
        rows[-1] = -1
    features = draws.normal(requests, 8, width)
    found, wanted = (
        ops.commit_path(ops.cache_pools(held), table, prefix, rows, features)
        for ops, held in ((round_steps, ours), (CORE, theirs))
    )  # fmt: skip
    assert torch.equal(found, wanted)
    assert all_equal(tuple(ours), tuple(theirs))


@given(seed=seeds, norms=st.booleans(), slots=st.permutations([-1, -1, 0, 7, 3, 99]))
@a_few
def test_the_cache_write(seed: int, norms: bool, slots: list[int]) -> None:
    draws, dim = Draws(seed), 16
    qkv, angles = draws.normal(6, 5 * dim), draws.normal(8, dim // 2)
    weights = draws.normal(2, dim) if norms else (None, None)
    pools = draws.normal(2, 2, 4, 1, dim)
    ours, theirs = pools.clone(), pools.clone()
    given_to = (qkv, int32(0, 7, 3, 3, 8, -1), angles.cos(), angles.sin(), torch.tensor(slots))
    found, wanted = (
        ops.norm_rope_kv_write(*given_to, *held, q_weight=weights[0], k_weight=weights[1])
        for ops, held in ((round_steps, ours), (CORE, theirs))
    )  # fmt: skip
    torch.testing.assert_close(found, wanted, rtol=2e-6, atol=2e-6, equal_nan=True)
    torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6, equal_nan=True)
