"""The round's steps in torch against the kernels' own slow references, which share no line with
them, and against numpy's noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.noise import gumbel
from jetflow_core.rounds.device_noise import gumbel_rows
from jetflow_core.rounds.torch_ops import TorchRoundOps
from jetflow_kernels import round as kernels
from jetflow_kernels import tree_attention_reference
from torch import Tensor

OPS = TorchRoundOps()
seeds = st.integers(0, 2**32)


def _int32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _parents(count: int, capacity: int, random: torch.Generator) -> Tensor:
    above = [int(torch.randint(0, row, (), generator=random)) for row in range(1, count)]
    return _int32(-1, *above, *[-1] * (capacity - count))


@given(seed=seeds, rows=st.integers(1, 3), count=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_the_greatest_logits(seed: int, rows: int, count: int) -> None:
    logits = torch.randn(rows, 9, generator=_random(seed))
    found, wanted = OPS.depth_topk(logits, count), kernels.depth_topk_reference(logits, count)
    assert torch.equal(found.tokens, wanted.tokens)
    torch.testing.assert_close(found.log_probs, wanted.log_probs)


def test_a_row_that_is_no_distribution_has_no_scores() -> None:
    logits = torch.tensor([[0.0, torch.nan], [0.0, torch.inf], [-torch.inf] * 2, [1.0, 1.0]])
    scores = OPS.depth_topk(logits, 2).log_probs
    assert scores.isnan().all(1).tolist() == [True, True, True, False]


@given(seed=seeds, capacity=st.integers(1, 12), by_parent=st.booleans(), depth=st.integers(0, 4))
@settings(max_examples=30, deadline=None)
def test_trees_and_their_words(seed: int, capacity: int, by_parent: bool, depth: int) -> None:
    random, width = _random(seed), 3
    tokens = torch.stack([torch.randperm(9, generator=random)[:width] for _ in range(2 * depth)]) \
        if depth else torch.empty(0, width)  # fmt: skip
    tokens = tokens.view(2, depth, width).int()
    # Halves make ties.
    table = torch.randint(-4, 1, (2, depth, width if by_parent else 1, width), generator=random) / 2
    given_to = (tokens, table, _int32(3, 4), _int32(capacity, 1), _int32(5, 0))
    found = OPS.build_tree(*given_to, capacity=capacity)
    wanted = kernels.build_tree_reference(*given_to, capacity=capacity)
    for name, tensor in wanted.tensors().items():
        assert torch.equal(getattr(found, name), tensor), name
    packed = OPS.pack_ancestors(found.parents, found.num_nodes)
    wanted_words = kernels.pack_ancestors_reference(wanted.parents, wanted.num_nodes)
    assert all(torch.equal(one, other) for one, other in zip(packed, wanted_words, strict=True))


def test_a_budget_that_is_none_gives_the_root() -> None:
    tokens, table = torch.zeros(2, 1, 1, dtype=torch.int32), torch.zeros(2, 1, 1, 1)
    trees = OPS.build_tree(tokens, table, _int32(1, 1), _int32(0, 3), _int32(0, 0), capacity=2)
    assert trees.num_nodes.tolist() == [1, 1]
    assert trees.valid.tolist() == [False, False]


@given(seed=seeds, nodes=st.lists(st.integers(0, 7), min_size=1, max_size=3))
@settings(max_examples=20, deadline=None)
def test_slots(seed: int, nodes: list[int]) -> None:
    requests = len(nodes)
    table = torch.randint(0, 50, (requests, 4), generator=_random(seed), dtype=torch.int32)
    prefix = torch.randint(0, 14, (requests,), generator=_random(seed), dtype=torch.int32)
    given_to = (table, prefix, _int32(*nodes))
    found = OPS.tree_slots(*given_to, capacity=7, page=4)
    assert torch.equal(found, kernels.tree_slots_reference(*given_to, capacity=7, page=4))


@given(
    seed=seeds,
    nodes=st.lists(st.sampled_from([0, 1, 2, 5, 66]), min_size=1, max_size=3),
    group=st.sampled_from([1, 3]),
    spare=st.integers(0, 2),
)
@settings(max_examples=20, deadline=None)
def test_attention_over_pages(seed: int, nodes: list[int], group: int, spare: int) -> None:
    random, requests, page, rows = _random(seed), len(nodes), 4, sum(nodes) + spare
    if rows == 0:
        return
    prefix = torch.randint(0, 9, (requests,), generator=random, dtype=torch.int32)
    table = torch.randperm(requests * 20, generator=random).view(requests, 20).int()
    q = torch.randn(rows, 2 * group, 6, generator=random, dtype=torch.float64)
    pools = torch.full((2, requests * 20, page, 2, 6), torch.nan, dtype=torch.float64)
    words = torch.zeros(rows, 2, dtype=torch.int64)
    first = 0
    for request, count in enumerate(nodes):
        for place in range(int(prefix[request]) + count):
            at = (int(table[request, place // page]), place % page)
            pools[:, *at] = torch.randn(2, 2, 6, generator=random, dtype=torch.float64)
        if count:
            parents = _parents(count, 66, random)[None]
            packed, _ = kernels.pack_ancestors_reference(parents, _int32(count))
            words[first : first + count] = packed[0, :count]
        first += count
    starts = _int32(0, *np.cumsum(nodes).tolist())
    given_to = (q, pools[0], pools[1], table, starts, prefix, words)
    found = OPS.tree_attention(*given_to)
    torch.testing.assert_close(found, tree_attention_reference(*given_to))


@given(seed=seeds, norms=st.booleans(), slots=st.permutations([-1, -1, 0, 7, 3, 99]))
@settings(max_examples=20, deadline=None)
def test_norms_positions_and_the_cache_write(seed: int, norms: bool, slots: list[int]) -> None:
    random, dim = _random(seed), 16
    qkv = torch.randn(6, 5 * dim, generator=random)
    angles = torch.randn(8, dim // 2, generator=random)
    weights = [torch.randn(dim, generator=random) for _ in "qk"] if norms else [None, None]
    pools = torch.randn(2, 2, 4, 1, dim, generator=random)
    ours, theirs = pools.clone(), pools.clone()
    given_to = (qkv, _int32(0, 7, 3, 3, 8, -1), angles.cos(), angles.sin(), torch.tensor(slots))
    found, wanted = (
        write(*given_to, *where, q_weight=weights[0], k_weight=weights[1])
        for write, where in (
            (OPS.norm_rope_kv_write, ours), (kernels.norm_rope_kv_write_reference, theirs)
        )
    )  # fmt: skip
    torch.testing.assert_close(found, wanted, equal_nan=True)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_rows_without_a_slot_change_nothing() -> None:
    pools = torch.full((2, 1, 4, 1, 16), torch.nan)
    qkv, table = torch.ones(3, 48), torch.ones(4, 8)
    OPS.norm_rope_kv_write(qkv, _int32(0, 1, 2), table, table, torch.tensor([-1, -1, 4]), *pools)
    assert pools.isnan().all()


@given(seed=seeds, hot=st.lists(st.sampled_from([0.0, 0.7, 1.5]), min_size=1, max_size=3))
@settings(max_examples=20, deadline=None)
def test_picks(seed: int, hot: list[float]) -> None:
    rows, random = len(hot), _random(seed)
    logits = torch.randint(-3, 3, (rows, 11), generator=random) / 2
    found = OPS.pick_argmax(logits)
    wanted = kernels.pick_argmax_reference(logits)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    keys = torch.randint(-(2**63), 2**63 - 1, (rows,), generator=random)
    given_to = (logits, torch.tensor(hot), keys, _int32(*range(rows)))
    found, wanted = OPS.pick_sampled(*given_to), kernels.pick_sampled_reference(*given_to)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_nan_is_told_and_never_picked() -> None:
    logits = torch.tensor([[torch.nan, -1.0], [0.0, 1.0]])
    heat, keys = torch.zeros(2), torch.zeros(2, dtype=torch.int64)
    for picks, broken in (
        OPS.pick_argmax(logits), OPS.pick_sampled(logits, heat, keys, _int32(0, 0))
    ):  # fmt: skip
        assert picks.tolist() == [1, 1]
        assert broken.tolist() == [True, False]


@pytest.mark.parametrize("seed", [0, 1, 2**53, 2**64 - 1])
def test_the_noise_is_that_of_every_other_engine(seed: int) -> None:
    places, count = [1, 77, 40_000], 203
    keys = torch.from_numpy(np.full(3, seed, dtype=np.uint64).view(np.int64))
    found = gumbel_rows(keys, torch.tensor(places), count)
    wanted = [gumbel(seed, place, np.arange(count)) for place in places]
    np.testing.assert_allclose(found.numpy(), np.stack(wanted), rtol=1e-13, atol=1e-13)


@given(seed=seeds, nodes=st.lists(st.integers(0, 8), min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_the_walk(seed: int, nodes: list[int]) -> None:
    random, requests = _random(seed), len(nodes)
    parents = torch.stack([_parents(max(count, 1), 8, random) for count in nodes])
    tokens, picks = torch.randint(0, 3, (2, requests, 8), generator=random, dtype=torch.int32)
    given_to = (tokens, parents, _int32(*nodes), picks)
    for depth in (0, 2, 8):
        found = OPS.accept_walk(*given_to, max_depth=depth)
        wanted = kernels.accept_walk_reference(*given_to, max_depth=depth)
        for name in ("rows", "tokens", "accepted", "correction"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name


@given(seed=seeds, requests=st.integers(1, 3), idle=st.booleans())
@settings(max_examples=20, deadline=None)
def test_the_commit(seed: int, requests: int, idle: bool) -> None:
    random = _random(seed)
    table = torch.randperm(requests * 4, generator=random).view(requests, 4).int()
    prefix = torch.randint(0, 9, (requests,), generator=random, dtype=torch.int32)
    rows = torch.full((requests, 4), -1, dtype=torch.int32)
    for line in rows[1:] if idle else rows:
        kept = torch.randperm(6, generator=random)[: int(torch.randint(0, 4, (), generator=random))]
        line[: len(kept) + 1] = _int32(0, *(1 + kept.sort().values).tolist())
    pools = torch.randn(2, requests * 4, 4, 1, 16, generator=random)
    ours, theirs = pools.clone(), pools.clone()
    features = torch.randn(requests, 7, 5, generator=random)
    found = OPS.commit_path(OPS.cache_pools([*ours]), table, prefix, rows, features)
    wanted = kernels.commit_path_reference(
        kernels.CachePools.of([*theirs]), table, prefix, rows, features
    )
    assert torch.equal(found, wanted)
    assert torch.equal(ours, theirs)
