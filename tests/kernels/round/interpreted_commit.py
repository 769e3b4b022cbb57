"""Interpreted, or on a CUDA device: accepted rows move as in the reference, over each other too."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from jetflow_kernels.round import (
    CachePools,
    commit_path,
    commit_path_reference,
    tree_slots,
    tree_slots_reference,
)
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device")


@dataclass(frozen=True)
class Commit:
    pools: list[Tensor]
    page_table: Tensor
    prefix_len: Tensor
    rows: Tensor
    features: Tensor


def a_commit(
    page: int, heads: int, dim: int, dtype: torch.dtype, *, packed: bool = False
) -> Commit:
    """Three requests: nothing accepted, a chain that moves nowhere, rows that move over others."""
    generator, device = torch.Generator().manual_seed(page), torch.get_default_device()
    requests, tree, pages = 3, 8, 24
    paths = [[0], [0, 1, 2, 3], [0, 2, 3, 7]]
    rows = torch.full((requests, 5), -1, dtype=torch.int32)
    for request, path in enumerate(paths):
        rows[request, : len(path)] = torch.tensor(path, dtype=torch.int32)
    table = torch.randperm(pages, generator=generator, device="cpu").view(3, -1).int().to(device)
    pools = []
    for _ in range(2):
        values = torch.randn(pages, page, heads, 2 * dim, generator=generator, device="cpu")
        values = values.to(device, dtype)
        if packed:
            values = values.transpose(1, 2).contiguous().transpose(1, 2)
            pools += [values[..., :dim], values[..., dim:]]
        else:
            pools.append(values[..., :dim].contiguous())
    return Commit(
        pools,
        table,
        torch.tensor([0, 3, page + 1], dtype=torch.int32),
        rows,
        torch.randn(requests, tree, 3, generator=generator, device="cpu").to(device, dtype),
    )


@pytest.mark.parametrize(
    ("page", "heads", "dim", "dtype", "packed"),
    [
        (16, 2, 8, torch.float32, False),
        (4, 1, 16, torch.bfloat16, False),
        (2, 3, 24, torch.float16, False),
        (4, 2, 8, torch.float16, True),
        (16, 8, 128, torch.bfloat16, True),
    ],
)
def test_moves(page: int, heads: int, dim: int, dtype: torch.dtype, packed: bool) -> None:
    found = a_commit(page, heads, dim, dtype, packed=packed)
    wanted = a_commit(page, heads, dim, dtype, packed=packed)
    before = [pool.clone() for pool in found.pools]
    results = []
    for op, call in ((commit_path, found), (commit_path_reference, wanted)):
        cache = CachePools.of(call.pools)
        results.append(op(cache, call.page_table, call.prefix_len, call.rows, call.features))
    assert torch.equal(*results)
    assert results[0][2, :4].equal(found.features[2, [0, 2, 3, 7]])
    assert results[0][0, 1:].eq(0).all()
    for a, b, old in zip(found.pools, wanted.pools, before, strict=True):
        assert torch.equal(a, b)
        flat, old = (x[found.page_table[2].long()].flatten(0, 1) for x in (a, old))
        start = page + 1
        assert flat[start : start + 4].equal(old[start + torch.tensor([0, 2, 3, 7])])
        assert flat[start + 4 :].equal(old[start + 4 :])
        assert flat[:start].equal(old[:start])


def test_every_slot_of_one_path_is_another_rows_source() -> None:
    rows = torch.tensor([[0, 2, 4, 6, 8, 10, 12, 14]], dtype=torch.int32)
    pools = [torch.arange(64.0).view(4, 4, 1, 4)]
    before = pools[0].flatten(0, 1).clone()
    table = torch.tensor([[3, 1, 0, 2]], dtype=torch.int32)
    zero = torch.zeros(1, dtype=torch.int32)
    features = torch.zeros(1, 16, 0)
    out = torch.empty(1, 8, 0)
    assert commit_path(CachePools.of(pools), table, zero, rows, features, out=out) is out
    order = [12, 13, 14, 15, 4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11]
    assert pools[0].flatten(0, 1)[order[:8]].equal(before[order][::2])


def test_slots_of_rows() -> None:
    table = torch.tensor([[5, 2, 9], [1, 0, 3]], dtype=torch.int32)
    prefix = torch.tensor([3, 9], dtype=torch.int32)
    nodes = torch.tensor([4, 5], dtype=torch.int32)
    arguments = {"capacity": 6, "page": 4}
    slots = tree_slots(table, prefix, nodes, **arguments)
    assert slots.tolist() == [[23, 8, 9, 10, -1, -1], [13, 14, 15, -1, -1, -1]]
    assert torch.equal(slots, tree_slots_reference(table, prefix, nodes, **arguments))
    out = torch.empty_like(slots)
    assert tree_slots(table, prefix, nodes, **arguments, out=out) is out
    assert torch.equal(out, slots)


def test_the_ops_declare_what_they_write() -> None:
    call = a_commit(4, 1, 8, torch.float32)
    cache = CachePools.of(call.pools)
    tensors = (call.page_table, call.prefix_len, call.rows, call.features)
    out = commit_path_reference(cache, *tensors)
    slots = torch.empty(3, 6, dtype=torch.int64)
    ops = torch.ops.jetflow_kernels
    results = torch.library.opcheck(
        ops.tree_slots.default,
        (*tensors[:2], torch.full((3,), 6, dtype=torch.int32), 4, slots),
        test_utils=("test_schema", "test_faketensor"),
    )
    assert set(results.values()) == {"SUCCESS"}
    # The schema's test works on copies, and the addresses name the originals.
    results = torch.library.opcheck(
        ops.commit_path.default,
        (list(cache.pools), cache.addresses, *tensors, out),
        test_utils=("test_faketensor",),
    )
    assert set(results.values()) == {"SUCCESS"}
