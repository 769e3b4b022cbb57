"""The ops on logits and paths refuse what does not fit, by name, before they compute."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from jetflow_kernels.round import (
    CachePools,
    PackedTrees,
    accept_walk,
    accept_walk_reference,
    advance,
    advance_reference,
    commit_path,
    commit_path_reference,
    depth_topk,
    depth_topk_reference,
    pack_ancestors,
    pack_ancestors_reference,
    pack_trees,
    pack_trees_reference,
    path_candidates,
    path_candidates_reference,
    pick_argmax,
    pick_argmax_reference,
    tree_slots,
    tree_slots_reference,
)
from jetflow_kernels.round.build_sizes import bound_sizes, is_swept, sweep_sizes
from jetflow_kernels.round.topk import split_vocabulary


@pytest.mark.parametrize("op", [depth_topk, depth_topk_reference])
@pytest.mark.parametrize(
    ("logits", "count", "message"),
    [
        (torch.zeros(5), 1, r"logits must have shape \[any, any\], got \[5\]"),
        (torch.zeros(5, 8).double(), 1, r"logits must be torch.float32 or .* got torch.float64"),
        (torch.zeros(8, 5).T, 1, r"no gaps in a row, got strides \(1, 5\)"),
        (torch.zeros(5, 0), 1, r"vocabulary V .* 1..1048576, got 0"),
        (torch.zeros(5, 8), 0, r"count must be in 1..8, got 0"),
        (torch.zeros(5, 8), 9, r"count must be in 1..8, got 9"),
        (torch.zeros(5, 500), 129, r"count must be in 1..128, got 129"),
    ],
)
def test_depth_topk(op: Callable[..., object], logits, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(logits, count)


@pytest.mark.parametrize("op", [pick_argmax, pick_argmax_reference])
def test_pick_argmax(op: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"logits must have shape"):
        op(torch.zeros(3))
    out = torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"out\[0\] must have shape \[3\], got \[2\]"):
        op(torch.zeros(3, 4), out=out)
    out = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"out\[1\] must be torch.bool, got torch.int8"):
        op(torch.zeros(3, 4), out=out)


@pytest.mark.parametrize("op", [pack_ancestors, pack_ancestors_reference])
def test_pack_ancestors(op: Callable[..., object]) -> None:
    count = torch.ones(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"rows B of parents must be in 1..256, got 257"):
        op(torch.zeros(2, 257, dtype=torch.int32), count)
    with pytest.raises(ValueError, match=r"parents must be .* got torch.float32"):
        op(torch.zeros(2, 4), count)
    with pytest.raises(ValueError, match=r"num_nodes must have shape \[3\], got \[2\]"):
        op(torch.zeros(3, 4, dtype=torch.int32), count)


@pytest.mark.parametrize("op", [accept_walk, accept_walk_reference])
def test_accept_walk(op: Callable[..., object]) -> None:
    rows = torch.zeros(2, 4, dtype=torch.int32)
    count = torch.ones(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"picks must have shape \[2, 4\], got \[2, 3\]"):
        op(rows, rows, count, rows[:, :3], max_depth=2)
    with pytest.raises(ValueError, match=r"parents must be torch.int32, got torch.int64"):
        op(rows, rows.long(), count, rows, max_depth=2)
    with pytest.raises(ValueError, match=r"max_depth must be in 0..255, got -1"):
        op(rows, rows, count, rows, max_depth=-1)


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ([], r"at least 1 tensor, got 0"),
        ([torch.zeros(2, 4, 8)], r"pools\[0\] must have shape"),
        ([torch.zeros(2, 4, 8, 2).transpose(2, 3)], r"without gaps in D"),
        ([torch.zeros(2, 4, 0, 8)], r"\[pages, page, Hkv, D\] without gaps"),
        ([torch.zeros(2, 4, 1, 8), torch.zeros(3, 4, 1, 8)], r"pools\[1\] must have shape"),
        ([torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 8).half()], r"pools\[1\] must be"),
        (
            [torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1, 16)[..., :8]],
            r"pools\[1\] must have the strides",
        ),
        ([torch.zeros(2, 4, 1, 8)[..., 1:]], r"multiple of 16 bytes"),
    ],
)
def test_cache_pools(pools: list[torch.Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CachePools.of(pools)


COMMIT = {
    "page_table": torch.zeros(2, 3, dtype=torch.int32),
    "prefix_len": torch.zeros(2, dtype=torch.int32),
    "rows": torch.zeros(2, 5, dtype=torch.int32),
    "features": torch.zeros(2, 8, 6),
}


@pytest.mark.parametrize("op", [commit_path, commit_path_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"page_table": torch.zeros(2, 3)}, r"page_table must be torch.int32"),
        ({"page_table": torch.zeros(3, 2, dtype=torch.int32).T}, r"page_table .* no gaps"),
        ({"prefix_len": torch.zeros(3, dtype=torch.int32)}, r"prefix_len must have shape \[2\]"),
        ({"rows": torch.zeros(2, 5)}, r"rows must be torch.int32"),
        ({"rows": torch.zeros(2, 65, dtype=torch.int32)}, r"steps S of rows .* 1..64, got 65"),
        ({"features": torch.zeros(3, 8, 6)}, r"features must have shape \[2, any, any\]"),
        ({"features": torch.zeros(2, 8, 6).int()}, r"features must be floating"),
        ({"out": torch.zeros(2, 4, 6)}, r"out must have shape \[2, 5, 6\], got \[2, 4, 6\]"),
    ],
)
def test_commit_path(op: Callable[..., object], change: dict[str, object], message: str) -> None:
    cache = CachePools.of([torch.zeros(2, 4, 1, 8)])
    with pytest.raises(ValueError, match=message):
        op(cache, **{**COMMIT, **change})


@pytest.mark.parametrize("op", [tree_slots, tree_slots_reference])
def test_tree_slots(op: Callable[..., object]) -> None:
    table, count = COMMIT["page_table"], COMMIT["prefix_len"]
    with pytest.raises(ValueError, match=r"capacity must be in 1..256, got 0"):
        op(table, count, count, capacity=0, page=4)
    with pytest.raises(ValueError, match=r"page must be at least 1, got 0"):
        op(table, count, count, capacity=4, page=0)
    with pytest.raises(ValueError, match=r"num_nodes must be torch.int32, got torch.int64"):
        op(table, count, count.long(), capacity=4, page=4)


@pytest.mark.parametrize("op", [pack_trees, pack_trees_reference])
def test_pack_trees(op: Callable[..., object]) -> None:
    rows, words = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3, 1, dtype=torch.int64)
    count = torch.ones(2, dtype=torch.int32)
    given = (rows, rows, words, rows, count, count)
    with pytest.raises(ValueError, match=r"rows must be in 1..262144, got 0"):
        op(*given, rows=0, page=4)
    with pytest.raises(ValueError, match=r"page must be at least 1, got 0"):
        op(*given, rows=4, page=0)
    with pytest.raises(ValueError, match=r"counts must be torch.int32, got torch.int64"):
        op(*given[:5], count.long(), rows=4, page=4)
    with pytest.raises(ValueError, match=r"ancestors must have shape \[2, 3, any\], got \[2, 3\]"):
        op(*given[:2], rows, *given[3:], rows=4, page=4)
    out = PackedTrees.empty(2, 3, 5, 1, rows.device)
    with pytest.raises(ValueError, match=r"out.tokens must have shape \[4\], got \[5\]"):
        op(*given, rows=4, page=4, out=out)


@pytest.mark.parametrize("op", [advance, advance_reference])
def test_advance(op: Callable[..., object]) -> None:
    line, count = torch.zeros(2, 3, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    flags = torch.ones(2, dtype=torch.bool)
    sizes = {"live": flags, "roots": count, "prefix_len": count, "remaining": count, "stops": line}
    starts = torch.arange(3, dtype=torch.int32)
    given = (line, line, count, count, count, starts, flags, flags)
    record = torch.zeros(2, 8, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"lines.record must have shape \[2, 8\], got \[2, 3\]"):
        op(SimpleNamespace(**sizes, record=line), *given)
    with pytest.raises(ValueError, match=r"broken must be torch.bool, got torch.int32"):
        op(SimpleNamespace(**sizes, record=record), *given[:6], count, flags)
    with pytest.raises(ValueError, match=r"at least 1 column and 1 row"):
        op(SimpleNamespace(**sizes, record=record), *given[:6], flags[:0], flags)


@pytest.mark.parametrize("op", [path_candidates, path_candidates_reference])
def test_path_candidates(op: Callable[..., object]) -> None:
    def ask(width: int, pool: int, change: Callable[[list], object] = lambda given: None) -> None:
        given = [
            torch.zeros(2, width, dtype=torch.int32), torch.zeros(2, width),
            torch.zeros(2, 3, pool, dtype=torch.int32), torch.zeros(2, 3, pool),
            torch.zeros(2, 3, pool, pool), torch.ones(2, dtype=torch.float64),
        ]  # fmt: skip
        change(given)
        op(*given)

    for width, pool, message in (
        (33, 64, r"candidates K of first_tokens must be in 1..32, got 33"),
        (8, 7, r"tokens Q of pooled must be in 8..128, got 7"),
        (8, 129, r"tokens Q of pooled must be in 8..128, got 129"),
    ):
        with pytest.raises(ValueError, match=message):
            ask(width, pool)
    with pytest.raises(
        ValueError, match=r"bias must have shape \[2, 3, 8, 8\], got \[2, 3, 4, 8\]"
    ):
        ask(4, 8, lambda given: given.__setitem__(4, given[4][:, :, :4]))
    with pytest.raises(ValueError, match=r"temperatures must be torch.float64, got torch.float32"):
        ask(4, 8, lambda given: given.__setitem__(5, given[5].float()))


def test_compiled_kernels_refuse_tensors_of_the_cpu() -> None:
    rows = torch.zeros(1, 4, dtype=torch.int32)
    count = torch.ones(1, dtype=torch.int32)
    for call in (
        lambda: depth_topk(torch.zeros(2, 8), 2),
        lambda: pick_argmax(torch.zeros(2, 8)),
        lambda: pack_ancestors(rows, count),
        lambda: accept_walk(rows, rows, count, rows, max_depth=1),
        lambda: commit_path(CachePools.of([torch.zeros(2, 4, 1, 8)]), **COMMIT),
        lambda: tree_slots(rows, count, count, capacity=4, page=4),
    ):
        with pytest.raises(ValueError, match="CUDA device, got tensors on cpu"):
            call()


@pytest.mark.parametrize("vocabulary", [1, 31, 4096, 4097, 151_936, 262_144, 2**20])
@pytest.mark.parametrize("count", [1, 16, 128])
def test_parts_cover_the_vocabulary_and_fit_one_program(vocabulary: int, count: int) -> None:
    part, parts = split_vocabulary(vocabulary, count)
    assert part & (part - 1) == 0
    assert (parts - 1) * part < vocabulary <= parts * part
    assert parts * count <= 8192


@pytest.mark.parametrize(("depth", "width"), [(2, 1), (15, 16), (63, 32), (63, 4), (3, 5)])
@pytest.mark.parametrize("shared", [True, False])
def test_what_a_sweep_holds_at_once_is_bounded(depth: int, width: int, shared: bool) -> None:
    assert is_swept(33, depth, width)
    sizes = bound_sizes(depth, 1 if shared else width, width)
    known = sizes["LENGTHS"] * sizes["WIDTH"] ** 2
    assert width <= sizes["WIDTH"]
    assert known <= 8192
    assert sizes["LENGTHS"] >= depth - 1 or known == 8192
    assert sizes["PARENTS"] == 1 if shared else sizes["PARENTS"] >= width
    # The place of a parent in the list is packed above 13 bits of an int32.
    assert 8 * 33 <= sweep_sizes(33, depth, width)["ROOM"] <= 2**18
    assert sweep_sizes(256, depth, width)["ROOM"] == 2048


def test_small_trees_and_wide_ones_are_built_node_by_node() -> None:
    assert not is_swept(32, 15, 16)
    assert not is_swept(256, 15, 33)
    assert not is_swept(256, 1, 16)
