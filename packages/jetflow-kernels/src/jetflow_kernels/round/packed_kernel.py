"""Triton: the rows of all trees as one packed batch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(
    do_not_specialize=[
        "table_stride", "max_pages", "page", "requests", "capacity", "rows", "words", "blocks",
    ]
)  # fmt: skip
def pack_rows_kernel(
    tokens: tl.tensor,
    positions: tl.tensor,
    ancestors: tl.tensor,
    page_table: tl.tensor,
    prefix_len: tl.tensor,
    counts: tl.tensor,
    out_tokens: tl.tensor,
    out_positions: tl.tensor,
    out_slots: tl.tensor,
    out_ancestors: tl.tensor,
    out_owners: tl.tensor,
    cu_nodes: tl.tensor,
    places: tl.tensor,
    table_stride: tl.tensor,
    max_pages: tl.tensor,
    page: tl.tensor,
    requests: tl.tensor,
    capacity: tl.tensor,
    rows: tl.tensor,
    words: tl.tensor,
    blocks: tl.tensor,
    REQUESTS: tl.constexpr,
    ROWS: tl.constexpr,
    SLOTS: tl.constexpr,
) -> None:
    """The first ``blocks`` programs: ``ROWS`` rows of the batch; then one for each request."""
    program = tl.program_id(0)
    each = tl.arange(0, REQUESTS)
    sizes = tl.load(counts + each, mask=each < requests, other=0)
    ends = tl.cumsum(sizes, 0)
    if program >= blocks:
        request = (program - blocks).to(tl.int64)
        start = tl.sum(tl.where(each == request, ends - sizes, 0))
        nodes = tl.arange(0, SLOTS)
        where = tl.minimum(start + nodes, rows - 1).to(tl.int64)
        tl.store(places + request * capacity + nodes, where, mask=nodes < capacity)
        tl.store(cu_nodes + request, start)
        if request == requests - 1:
            tl.store(cu_nodes + requests, tl.sum(sizes))
        return
    row = program * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    behind = (ends[None, :] <= row[:, None]) & (each < requests)[None, :]
    owner = tl.minimum(tl.sum(behind.to(tl.int32), axis=1), requests - 1)
    mine = owner[:, None] == each[None, :]
    node = row - tl.sum(tl.where(mine, (ends - sizes)[None, :], 0), axis=1)
    real = inside & (row < tl.sum(sizes))
    source = owner.to(tl.int64) * capacity + node
    tl.store(out_owners + row, owner.to(tl.int64), mask=inside)
    token = tl.load(tokens + source, mask=real, other=0)
    tl.store(out_tokens + row, token.to(tl.int64), mask=inside)
    tl.store(out_positions + row, tl.load(positions + source, mask=real, other=0), mask=inside)
    place = tl.load(prefix_len + owner, mask=real, other=0) + node
    number = place // page
    known = real & (number < max_pages)
    line = page_table + owner.to(tl.int64) * table_stride
    found = tl.load(line + number, mask=known, other=0).to(tl.int64)
    tl.store(out_slots + row, tl.where(known, found * page + place % page, -1), mask=inside)
    for word in range(words):
        seen = tl.load(ancestors + source * words + word, mask=real, other=0)
        tl.store(out_ancestors + row.to(tl.int64) * words + word, seen, mask=inside)
