"""The rows of all trees as one packed batch, with their cache slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    MOST_ROWS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    power_of_two,
)

MOST_REQUESTS = 1024
"""Requests of a batch, whose sizes one program adds up."""
_BLOCK = 32


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedTrees:
    """The rows of R trees one behind the other, then padding; T rows, on one device, contiguous."""

    tokens: Tensor
    """[T] int64; 0 in padding."""
    positions: Tensor
    """[T] int32; 0 in padding."""
    slots: Tensor
    """[T] int64: page times rows of a page plus the row in it; -1 in padding and past the end of
    the page table."""
    ancestors: Tensor
    """[T, W] int64; 0 in padding."""
    owners: Tensor
    """[T] int64: whose row it is; the last request's in padding."""
    cu_nodes: Tensor
    """[R + 1] int32: first row of each tree, and the rows of all."""
    places: Tensor
    """[R, C] int64: the packed row of each row of a tree; some row where there is none."""

    @classmethod
    def empty(
        cls, requests: int, capacity: int, rows: int, words: int, device: torch.device
    ) -> PackedTrees:
        """Uninitialised results."""

        def make(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            tokens=make(rows),
            positions=make(rows, dtype=torch.int32),
            slots=make(rows),
            ancestors=make(rows, words),
            owners=make(rows),
            cu_nodes=make(requests + 1, dtype=torch.int32),
            places=make(requests, capacity),
        )


def pack_trees(
    tokens: Tensor,
    positions: Tensor,
    ancestors: Tensor,
    page_table: Tensor,
    prefix_len: Tensor,
    counts: Tensor,
    *,
    rows: int,
    page: int,
    out: PackedTrees | None = None,
) -> PackedTrees:
    """Packs the first rows of every tree, in one launch.

    Args:
        tokens: [R, C] int32, C from 1 to 256 and R from 1 to 1024.
        positions: [R, C] int32.
        ancestors: [R, C, W] int64.
        page_table: [R, max pages] int32, the last axis without gaps.
        prefix_len: [R] int32: the cache rows before each tree.
        counts: [R] int32: rows of each tree that are packed, 0 to C; at most ``rows`` in all.
        rows: T, at least 1.
        page: rows of a page, at least 1.
        out: results to write into instead of new ones.

    Returns:
        The batch.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    given = (tokens, positions, ancestors, page_table, prefix_len, counts)
    packed = _check(*given, rows, page, out)
    _pack_trees(
        tokens.contiguous(), positions.contiguous(), ancestors.contiguous(), page_table,
        prefix_len, counts, page, packed.tokens, packed.positions, packed.slots, packed.ancestors,
        packed.owners, packed.cu_nodes, packed.places,
    )  # fmt: skip
    return packed


def pack_trees_reference(
    tokens: Tensor,
    positions: Tensor,
    ancestors: Tensor,
    page_table: Tensor,
    prefix_len: Tensor,
    counts: Tensor,
    *,
    rows: int,
    page: int,
    out: PackedTrees | None = None,
) -> PackedTrees:
    """What ``pack_trees`` returns, on any device, one row at a time on the host.

    Args:
        tokens: see there.
        positions: see there.
        ancestors: see there.
        page_table: see there.
        prefix_len: see there.
        counts: see there.
        rows: see there.
        page: see there.
        out: see there.

    Returns:
        The batch.

    Raises:
        ValueError: as there, except that any device will do.
    """
    given = (tokens, positions, ancestors, page_table, prefix_len, counts)
    packed = _check(*given, rows, page, out)
    for tensor in (packed.tokens, packed.positions, packed.ancestors):
        tensor.fill_(0)
    packed.slots.fill_(-1)
    packed.owners.fill_(tokens.shape[0] - 1)
    row = 0
    for request, (count, before) in enumerate(
        zip(counts.tolist(), prefix_len.tolist(), strict=True)
    ):
        packed.cu_nodes[request] = row
        packed.places[request] = (row + torch.arange(tokens.shape[1])).clamp(max=rows - 1)
        pages = page_table[request].tolist()
        for node in range(count):
            packed.tokens[row], packed.positions[row] = (
                tokens[request, node],
                positions[request, node],
            )
            packed.ancestors[row], packed.owners[row] = ancestors[request, node], request
            number, offset = divmod(before + node, page)
            if number < len(pages):
                packed.slots[row] = pages[number] * page + offset
            row += 1
    packed.cu_nodes[-1] = row
    return packed


@torch.library.custom_op(
    "jetflow_kernels::pack_trees",
    mutates_args=(
        "out_tokens", "out_positions", "out_slots", "out_ancestors", "out_owners", "cu_nodes",
        "places",
    ),
)  # fmt: skip
def _pack_trees(
    tokens: Tensor,
    positions: Tensor,
    ancestors: Tensor,
    page_table: Tensor,
    prefix_len: Tensor,
    counts: Tensor,
    page: int,
    out_tokens: Tensor,
    out_positions: Tensor,
    out_slots: Tensor,
    out_ancestors: Tensor,
    out_owners: Tensor,
    cu_nodes: Tensor,
    places: Tensor,
) -> None:
    from jetflow_kernels.round.packed_kernel import pack_rows_kernel

    requests, capacity = tokens.shape
    rows, words = out_ancestors.shape
    blocks = -(-rows // _BLOCK)
    with device_of(pack_rows_kernel, tokens):
        pack_rows_kernel[(blocks + requests,)](
            tokens, positions, ancestors, page_table, prefix_len, counts,
            out_tokens, out_positions, out_slots, out_ancestors, out_owners, cu_nodes, places,
            page_table.stride(0), page_table.shape[1], page, requests, capacity, rows, words,
            blocks, REQUESTS=power_of_two(requests), ROWS=_BLOCK, SLOTS=power_of_two(capacity),
            num_warps=1 if requests <= 64 else 4,
        )  # fmt: skip


@_pack_trees.register_fake
def _(*arguments: Tensor | int) -> None:
    """The results are written in place; nothing is made."""


def _check(
    tokens: Tensor,
    positions: Tensor,
    ancestors: Tensor,
    page_table: Tensor,
    prefix_len: Tensor,
    counts: Tensor,
    rows: int,
    page: int,
    out: PackedTrees | None,
) -> PackedTrees:
    device, int32, int64 = tokens.device, (torch.int32,), (torch.int64,)
    expect("tokens", tokens, (-1, -1), int32, device)
    requests, capacity = tokens.shape
    expect_range("the requests R of tokens", requests, 1, MOST_REQUESTS)
    expect_range("the rows C of tokens", capacity, 1, MOST_ROWS)
    expect("positions", positions, (requests, capacity), int32, device)
    expect("ancestors", ancestors, (requests, capacity, -1), int64, device)
    expect("page_table", page_table, (requests, -1), int32, device)
    if page_table.stride(1) != 1:
        raise ValueError(f"page_table must have no gaps, got strides {page_table.stride()}")
    for name, tensor in (("prefix_len", prefix_len), ("counts", counts)):
        expect(name, tensor, (requests,), int32, device)
    expect_range("rows", rows, 1, MOST_REQUESTS * MOST_ROWS)
    if page < 1:
        raise ValueError(f"page must be at least 1, got {page}")
    words = ancestors.shape[2]
    if out is None:
        return PackedTrees.empty(requests, capacity, rows, words, device)
    for name, tensor, shape, types in (
        ("out.tokens", out.tokens, (rows,), int64),
        ("out.positions", out.positions, (rows,), int32),
        ("out.slots", out.slots, (rows,), int64),
        ("out.ancestors", out.ancestors, (rows, words), int64),
        ("out.owners", out.owners, (rows,), int64),
        ("out.cu_nodes", out.cu_nodes, (requests + 1,), int32),
        ("out.places", out.places, (requests, capacity), int64),
    ):
        expect(name, tensor, shape, types, device)
        expect_contiguous(name, tensor)
    return out
