"""Where the rows of a tree go in a paged cache."""

from __future__ import annotations

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


def tree_slots(
    page_table: Tensor,
    prefix_len: Tensor,
    num_nodes: Tensor,
    *,
    capacity: int,
    page: int,
    out: Tensor | None = None,
) -> Tensor:
    """The cache slot of every row of every tree: rows lie behind the prefix of their request.

    Args:
        page_table: [R, max pages] int32, the pages of each request in order.
        prefix_len: [R] int32, committed rows before each tree.
        num_nodes: [R] int32, rows of each tree.
        capacity: B, 1 to 256.
        page: rows of a page, at least 1.
        out: [R, B] int64, contiguous, to be written instead of a new tensor.

    Returns:
        [R, B] int64: page times ``page`` plus the row in the page; -1 for padding and for rows
        past the last page of the table.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    slots = _check(page_table, prefix_len, num_nodes, capacity, page, out)
    if page_table.shape[0]:
        _tree_slots(page_table, prefix_len, num_nodes, page, slots)
    return slots


def tree_slots_reference(
    page_table: Tensor,
    prefix_len: Tensor,
    num_nodes: Tensor,
    *,
    capacity: int,
    page: int,
    out: Tensor | None = None,
) -> Tensor:
    """What ``tree_slots`` returns, on any device, one row at a time on the host.

    Args:
        page_table: see there.
        prefix_len: see there.
        num_nodes: see there.
        capacity: see there.
        page: see there.
        out: see there.

    Returns:
        The slots.

    Raises:
        ValueError: as there, except that any device will do.
    """
    slots = _check(page_table, prefix_len, num_nodes, capacity, page, out).fill_(-1)
    for request in range(page_table.shape[0]):
        table = page_table[request].tolist()
        for row in range(min(capacity, int(num_nodes[request]))):
            number, offset = divmod(int(prefix_len[request]) + row, page)
            if number < len(table):
                slots[request, row] = table[number] * page + offset
    return slots


@torch.library.custom_op("jetflow_kernels::tree_slots", mutates_args=("slots",))
def _tree_slots(
    page_table: Tensor, prefix_len: Tensor, num_nodes: Tensor, page: int, slots: Tensor
) -> None:
    from jetflow_kernels.round.commit_kernel import slots_kernel

    requests, capacity = slots.shape
    with device_of(slots_kernel, slots):
        slots_kernel[(requests,)](
            page_table, prefix_len, num_nodes, slots, page_table.stride(0), page_table.shape[1],
            capacity, page, SLOTS=power_of_two(capacity), num_warps=1,
        )  # fmt: skip


@_tree_slots.register_fake
def _(page_table: Tensor, prefix_len: Tensor, num_nodes: Tensor, page: int, slots: Tensor) -> None:
    """The results are written in place; nothing is made."""


def _check(
    page_table: Tensor,
    prefix_len: Tensor,
    num_nodes: Tensor,
    capacity: int,
    page: int,
    out: Tensor | None,
) -> Tensor:
    device = page_table.device
    expect("page_table", page_table, (-1, -1), (torch.int32,), device)
    requests = page_table.shape[0]
    if page_table.stride(1) != 1:
        raise ValueError(f"page_table must have no gaps, got strides {page_table.stride()}")
    expect("prefix_len", prefix_len, (requests,), (torch.int32,), device)
    expect("num_nodes", num_nodes, (requests,), (torch.int32,), device)
    expect_range("capacity", capacity, 1, MOST_ROWS)
    if page < 1:
        raise ValueError(f"page must be at least 1, got {page}")
    if out is None:
        return torch.empty(requests, capacity, dtype=torch.int64, device=device)
    expect("out", out, (requests, capacity), (torch.int64,), device)
    expect_contiguous("out", out)
    return out
