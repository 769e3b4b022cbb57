"""Triton: where the rows of a tree lie in a paged cache, and the move of the accepted ones."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["table_stride", "max_pages", "capacity", "page"])
def slots_kernel(
    page_table: tl.tensor,
    prefix_len: tl.tensor,
    num_nodes: tl.tensor,
    slots: tl.tensor,
    table_stride: tl.tensor,
    max_pages: tl.tensor,
    capacity: tl.tensor,
    page: tl.tensor,
    SLOTS: tl.constexpr,
) -> None:
    """Slots of the rows of one tree."""
    request = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, SLOTS)
    inside = (rows < capacity) & (rows < tl.load(num_nodes + request))
    places = tl.load(prefix_len + request) + rows
    inside = inside & (places // page < max_pages)
    pages = tl.load(page_table + request * table_stride + places // page, mask=inside, other=0)
    found = pages.to(tl.int64) * page + places % page
    tl.store(slots + request * capacity + rows, tl.where(inside, found, -1), mask=rows < capacity)


@triton.jit
def slot_offsets(
    page_table: tl.tensor,
    places: tl.tensor,
    used: tl.tensor,
    page: tl.tensor,
    page_stride: tl.tensor,
    slot_stride: tl.tensor,
) -> tl.tensor:
    """Offsets in a pool, in elements, of a request's cache rows ``places``."""
    pages = tl.load(page_table + places // page, mask=used, other=0).to(tl.int64)
    return pages * page_stride + (places % page).to(tl.int64) * slot_stride


@triton.jit
def move_rows(
    pool: tl.tensor,
    table: tl.tensor,
    prefix: tl.tensor,
    rows: tl.tensor,
    steps: tl.tensor,
    column: tl.tensor,
    columns: tl.tensor,
    page: tl.tensor,
    page_stride: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    HEAD_DIM: tl.constexpr,
    STEPS: tl.constexpr,
) -> tl.tensor:
    """Moves tree row ``rows[i]`` of one request to tree row i, in some columns."""
    step = tl.arange(0, STEPS)
    row = tl.load(rows + step, mask=step < steps, other=-1)
    moved = (row >= 0) & (row != step)
    source = slot_offsets(table, prefix + row, moved, page, page_stride, slot_stride)
    target = slot_offsets(table, prefix + step, moved, page, page_stride, slot_stride)
    within = (column // HEAD_DIM).to(tl.int64) * head_stride + column % HEAD_DIM
    mask = moved[:, None] & (column < columns)[None, :]
    values = tl.load(pool + (source[:, None] + within[None, :]), mask=mask)
    tl.debug_barrier()
    tl.store(pool + (target[:, None] + within[None, :]), values, mask=mask)


@triton.jit
def copy_rows(
    features: tl.tensor,
    out: tl.tensor,
    rows: tl.tensor,
    steps: tl.tensor,
    column: tl.tensor,
    row_stride: tl.tensor,
    width: tl.tensor,
    STEPS: tl.constexpr,
) -> tl.tensor:
    """Copies the features of the kept rows of one request, and 0 behind them."""
    step = tl.arange(0, STEPS)
    row = tl.load(rows + step, mask=step < steps, other=-1)
    inside = (column < width)[None, :]
    source = row.to(tl.int64)[:, None] * row_stride + column[None, :]
    values = tl.load(features + source, mask=(row >= 0)[:, None] & inside, other=0.0)
    target = step[:, None] * width + column[None, :]
    tl.store(out + target, values, mask=(step < steps)[:, None] & inside)


@triton.jit(do_not_specialize=["pool_programs", "pool_blocks", "table_stride", "steps", "page"])
def commit_kernel(
    addresses: tl.tensor,
    page_table: tl.tensor,
    prefix_len: tl.tensor,
    rows: tl.tensor,
    features: tl.tensor,
    out: tl.tensor,
    pool_programs: tl.tensor,
    pool_blocks: tl.tensor,
    table_stride: tl.tensor,
    steps: tl.tensor,
    columns: tl.tensor,
    page: tl.tensor,
    page_stride: tl.tensor,
    slot_stride: tl.tensor,
    head_stride: tl.tensor,
    request_stride: tl.tensor,
    row_stride: tl.tensor,
    width: tl.tensor,
    ELEMENT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Moves one block of columns of one pool for one request, or copies a block of features.

    All accepted rows of the block are read before the first is written, and no other program
    touches these columns of this request: rows may move over one another.
    """
    request = tl.program_id(0).to(tl.int64)
    work = tl.program_id(1)
    if work < pool_programs:
        pool = tl.load(addresses + work // pool_blocks).to(tl.pointer_type(ELEMENT), bitcast=True)
        move_rows(
            # Without the hint every element would be moved on its own.
            tl.multiple_of(pool, 16),
            page_table + request * table_stride,
            tl.load(prefix_len + request),
            rows + request * steps,
            steps,
            (work % pool_blocks) * BLOCK + tl.arange(0, BLOCK),
            columns,
            page,
            page_stride,
            slot_stride,
            head_stride,
            HEAD_DIM,
            STEPS,
        )
    else:
        copy_rows(
            features + request * request_stride,
            out + request * steps * width,
            rows + request * steps,
            steps,
            (work - pool_programs) * BLOCK + tl.arange(0, BLOCK),
            row_stride,
            width,
            STEPS,
        )
