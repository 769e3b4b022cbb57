"""Triton: exact best-first trees, one program a request, and the check of their input.

The frontier of a tree lives in registers: one slot for each node taken, with the best child of
its parent that is not in the tree yet. A node waits only once its better sibling and its parent
are rows, so B slots are enough. Taking the best slot writes a row, puts the next sibling into
the slot, and the row's best child into a new one. Nothing is sorted and nothing waits for the
host; the order of rows is that of the heap, ties included.
"""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.frontier_kernel import (
    NEVER,
    best_after,
    finish,
    first_path,
    join,
    split,
)
from jetflow_kernels.round.sorted_kernel import grow_sorted, order_is_kept, sort_line

_LARGEST = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["depth", "parents", "width"])
def check_kernel(
    tokens: tl.tensor,
    log_probs: tl.tensor,
    good: tl.tensor,
    records: tl.tensor,
    stats: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
    PARENTS: tl.constexpr,
    SORTED: tl.constexpr,
) -> None:
    """Says for one depth of one request whether its candidates are within the contract.

    Program (request, depth, line) also sorts the line, where ``SORTED`` asks for it.
    """
    level = tl.program_id(0).to(tl.int64) * depth + tl.program_id(1)
    if SORTED:
        line = level * parents + tl.program_id(2)
        sort_line(log_probs, records, stats, line, width, WIDTH)
    if tl.program_id(2) == 0:
        check_level(tokens, log_probs, good, level, parents, width, WIDTH, PARENTS)


@triton.jit
def check_level(
    tokens: tl.tensor,
    log_probs: tl.tensor,
    good: tl.tensor,
    level: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
    PARENTS: tl.constexpr,
) -> tl.tensor:
    """Whether one depth of one request is within the contract."""
    lines = tl.arange(0, PARENTS)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    inside = (lines < parents) & (columns < width)
    table = log_probs + level * parents * width
    values = tl.load(table + lines * width + columns, mask=inside, other=-float("inf"))
    # NaN fails this comparison as well.
    allowed = tl.min((values <= 0).to(tl.int32))
    possible = tl.max((values > -float("inf")).to(tl.int32), axis=0)
    candidates = tl.arange(0, WIDTH)
    named = tl.load(tokens + level * width + candidates, mask=candidates < width, other=0)
    named = named.to(tl.int64)
    negative = tl.max(((named < 0) & (possible > 0)).to(tl.int32))
    # What can never be a node gets a token of its own, so that padding is no duplicate.
    named = tl.where(possible > 0, named, -1 - candidates)
    equal = (named[:, None] == named[None, :]).to(tl.int32)
    repeated = tl.sum(tl.sum(equal, axis=1), axis=0) - WIDTH
    fine = (allowed > 0) & (negative == 0) & (repeated == 0)
    tl.store(good + level, fine.to(tl.int32))


@triton.jit
def allowed_rows(
    good: tl.tensor,
    budget: tl.tensor,
    depth: tl.tensor,
    capacity: tl.tensor,
    DEPTHS: tl.constexpr,
) -> tl.tensor:
    """Whether a request is within the contract, and the rows its tree may have."""
    levels = tl.arange(0, DEPTHS)
    fine = tl.min(tl.load(good + levels, mask=levels < depth, other=1)) > 0
    valid = fine & (budget >= 1) & (budget <= capacity)
    return valid, tl.where(valid, budget, 1).to(tl.int32)


@triton.jit
def start_tree(
    tokens: tl.tensor, parents: tl.tensor, depths: tl.tensor, scores: tl.tensor, root: tl.tensor
) -> tl.tensor:
    """Writes row 0."""
    tl.store(tokens, root)
    tl.store(parents, -1)
    tl.store(depths, 0)
    tl.store(scores, 0.0)


@triton.jit
def grow_by_scans(
    tokens: tl.tensor,
    log_probs: tl.tensor,
    indices: tl.tensor,
    out_tokens: tl.tensor,
    out_parents: tl.tensor,
    out_depths: tl.tensor,
    out_scores: tl.tensor,
    limit: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    BITS: tl.constexpr,
    PATH_WORDS: tl.constexpr,
) -> tl.tensor:
    """Writes all rows but the root of one tree; returns how many rows there are."""
    level_stride = parents * width
    line_stride = tl.where(parents > 1, width, 0)
    slots = tl.arange(0, SLOTS)
    # A node in waiting: cost, cost of its parent, and one integer that packs row of the parent
    # (8 bits), candidate index (7), candidate index of the parent (7) and level (6).
    high = tl.full([SLOTS], NEVER, tl.int32)
    low = tl.zeros([SLOTS], tl.int32)
    above_high, above_low = split(tl.zeros([SLOTS], tl.float64))
    packed = tl.zeros([SLOTS], tl.int32)
    if (limit > 1) & (depth > 0):
        none = tl.zeros([], tl.int32)
        first, first_low, first_index = best_after(
            log_probs, 1, width, tl.zeros([], tl.float64), none - 1, none, none, WIDTH
        )
        high = tl.where(slots == 0, first, high)
        low = tl.where(slots == 0, first_low, low)
        packed = tl.where(slots == 0, first_index << 8, packed)
    best = tl.min(high)
    row = tl.full([], 1, tl.int32)
    while (row < limit) & (best < NEVER):
        tied = high == best
        best_low = tl.min(tl.where(tied, low, _LARGEST))
        tied = tied & (low == best_low)
        if tl.sum(tied.to(tl.int32)) > 1:
            # No two slots have one parent, so the paths of the parents settle it.
            tied = first_path(
                tied, packed & 255, packed >> 22, out_parents, indices, BITS, PATH_WORDS
            )
        node = tl.max(tl.where(tied, packed, 0))
        least = -_LARGEST - 1
        above = join(
            tl.max(tl.where(tied, above_high, least)), tl.max(tl.where(tied, above_low, least))
        )
        parent = node & 255
        index = (node >> 8) & 127
        line = (node >> 15) & 127
        level = node >> 22
        cost = join(best, best_low)
        tl.store(out_tokens + row, tl.load(tokens + level * width + index))
        tl.store(out_parents + row, parent)
        tl.store(out_depths + row, level + 1)
        tl.store(out_scores + row, 0.0 - cost)
        tl.store(indices + row, index)
        next_high, next_low, next_index = best_after(
            log_probs + level * level_stride + line * line_stride,
            1, width, above, best, best_low, index, WIDTH,
        )  # fmt: skip
        below = tl.minimum(level + 1, depth - 1)
        child_high, child_low, child_index = best_after(
            log_probs + below * level_stride + index * line_stride,
            1, width, cost, best * 0 - 1, best_low, index, WIDTH,
        )  # fmt: skip
        child_high = tl.where(level + 1 < depth, child_high, NEVER)
        fresh = slots == row
        sibling = (level << 22) | (line << 15) | (next_index << 8) | parent
        child = ((level + 1) << 22) | (index << 15) | (child_index << 8) | row
        high = tl.where(fresh, child_high, tl.where(tied, next_high, high))
        low = tl.where(fresh, child_low, tl.where(tied, next_low, low))
        packed = tl.where(fresh, child, tl.where(tied, sibling, packed))
        above_high = tl.where(fresh, best, above_high)
        above_low = tl.where(fresh, best_low, above_low)
        best = tl.min(high)
        row += 1
    return row


@triton.jit(do_not_specialize=["capacity", "depth", "parents", "width", "num_words"])
def best_first_kernel(
    tokens: tl.tensor,
    log_probs: tl.tensor,
    good: tl.tensor,
    records: tl.tensor,
    stats: tl.tensor,
    roots: tl.tensor,
    budgets: tl.tensor,
    root_positions: tl.tensor,
    indices: tl.tensor,
    out_tokens: tl.tensor,
    out_parents: tl.tensor,
    out_depths: tl.tensor,
    out_scores: tl.tensor,
    out_words: tl.tensor,
    out_positions: tl.tensor,
    out_nodes: tl.tensor,
    out_valid: tl.tensor,
    capacity: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    num_words: tl.tensor,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTHS: tl.constexpr,
    BITS: tl.constexpr,
    PATH_WORDS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SORTED: tl.constexpr,
) -> None:
    """One tree; the tensors are those of ``build_tree``, the others those of ``check_kernel``."""
    request = tl.program_id(0).to(tl.int64)
    tokens += request * depth * width
    log_probs += request * depth * parents * width
    indices += request * capacity
    out_tokens += request * capacity
    out_parents += request * capacity
    out_depths += request * capacity
    out_scores += request * capacity
    valid, limit = allowed_rows(
        good + request * depth, tl.load(budgets + request), depth, capacity, DEPTHS
    )
    start_tree(out_tokens, out_parents, out_depths, out_scores, tl.load(roots + request))
    by_scans = True
    row = tl.full([], 1, tl.int32)
    if SORTED:
        records += request * depth * parents * width * 2
        stats += request * depth * parents * 2
        by_scans = not order_is_kept(records, stats, depth, parents, width)
        if not by_scans:
            row = grow_sorted(
                tokens, records, indices, out_tokens, out_parents, out_depths, out_scores,
                limit, depth, parents, width, SLOTS, BITS, PATH_WORDS,
            )  # fmt: skip
    if by_scans:
        row = grow_by_scans(
            tokens, log_probs, indices, out_tokens, out_parents, out_depths, out_scores,
            limit, depth, parents, width, SLOTS, WIDTH, BITS, PATH_WORDS,
        )  # fmt: skip
    tl.store(out_nodes + request, row)
    tl.store(out_valid + request, valid)
    finish(
        out_tokens,
        out_parents,
        out_depths,
        out_scores,
        out_words + request * capacity * num_words,
        out_positions + request * capacity,
        tl.load(root_positions + request),
        capacity,
        row,
        num_words,
        SLOTS,
        COLUMNS,
    )
