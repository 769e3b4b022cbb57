"""Triton: best-first trees whose siblings were sorted beforehand, so that a step looks at two.

Candidates sorted by log-probability are in the order of their scores below every parent, as long
as rounding makes no two different log-probabilities the same score. Whether it can is known from
the smallest difference within a line and the largest cost of a path; where it can, and for more
than 32 candidates, the builder scans siblings by their scores instead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.frontier_kernel import NEVER, first_path, join, split

_LARGEST = tl.constexpr(2147483647)
_INFINITE = tl.constexpr(0x7FF0000000000000)
# Two sums that round to one are less than a step of the sum apart, 2**-52 of it at most; twice
# that covers the rounding of the difference and of the bound.
_STEP = tl.constexpr(2.0**-51)
_CHUNK = tl.constexpr(256)
_NEAR = tl.constexpr(1024)


@triton.jit
def sort_line(
    log_probs: tl.tensor,
    records: tl.tensor,
    stats: tl.tensor,
    line: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Sorts one line: cost and candidate index side by side, smallest cost and index first.

    Args:
        log_probs: pointer to all lines.
        records: pointer to [lines, width, 2] int64: bits of the float64 cost, index.
        stats: pointer to [lines, 2] float64: the smallest difference between different finite
            costs, the largest finite cost.
        line: which one.
        width: number of candidates.
        WIDTH: ``width`` or more, a power of two.
    """
    at = tl.arange(0, WIDTH)
    inside = at < width
    values = tl.load(log_probs + line * width + at, mask=inside, other=-float("inf"))
    costs = 0.0 - values.to(tl.float64)
    before = (costs[None, :] < costs[:, None]) | (
        (costs[None, :] == costs[:, None]) & (at[None, :] < at[:, None])
    )
    rank = tl.sum(before.to(tl.int32), axis=1)
    place = records + (line * width + rank) * 2
    tl.store(place, costs.to(tl.int64, bitcast=True), mask=inside)
    tl.store(place + 1, at.to(tl.int64), mask=inside)
    # Written by other threads than those that read it now.
    tl.debug_barrier()
    own = records + (line * width + at) * 2
    low = tl.load(own, mask=inside, other=_INFINITE).to(tl.float64, bitcast=True)
    high = tl.load(own + 2, mask=at + 1 < width, other=_INFINITE).to(tl.float64, bitcast=True)
    apart = (high > low) & (high < float("inf"))
    gap = tl.where(apart, high, float("inf")) - tl.where(apart, low, 0.0)
    tl.store(stats + line * 2, tl.min(gap))
    tl.store(stats + line * 2 + 1, tl.max(tl.where(low < float("inf"), low, 0.0)))


@triton.jit
def order_is_kept(
    records: tl.tensor,
    stats: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
) -> tl.tensor:
    """Whether the sorted order is the order of scores below every parent."""
    lines = depth * parents
    chunk = tl.arange(0, _CHUNK)
    gap = tl.full([], float("inf"), tl.float64)
    most = tl.full([], 0.0, tl.float64)
    for start in range(0, lines, _CHUNK):
        mask = start + chunk < lines
        place = stats + (start + chunk) * 2
        gap = tl.minimum(gap, tl.min(tl.load(place, mask=mask, other=float("inf"))))
        most = tl.maximum(most, tl.max(tl.load(place + 1, mask=mask, other=0.0)))
    # What a step reads is found by the step before: bring the records near in one go.
    near = tl.arange(0, _NEAR)
    for start in range(0, tl.minimum(lines * width, 8 * _NEAR), _NEAR):
        place = records + (start + near) * 2
        costs = tl.load(place, mask=start + near < lines * width, other=0)
        costs = costs.to(tl.float64, bitcast=True)
        most = tl.maximum(most, tl.max(tl.where(costs < float("inf"), costs, 0.0)))
    return gap > most * depth * _STEP


@triton.jit
def record(records: tl.tensor, place: tl.tensor, exists: tl.tensor) -> tl.tensor:
    """Cost and candidate index of a sorted candidate; an infinite cost if there is none."""
    bits = tl.load(records + place * 2, mask=exists, other=_INFINITE)
    index = tl.load(records + place * 2 + 1, mask=exists, other=0)
    return bits.to(tl.float64, bitcast=True), index.to(tl.int32)


@triton.jit
def grow_sorted(
    tokens: tl.tensor,
    records: tl.tensor,
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
    BITS: tl.constexpr,
    PATH_WORDS: tl.constexpr,
) -> tl.tensor:
    """Writes all rows but the root of one tree; returns how many rows there are."""
    MASK: tl.constexpr = (1 << BITS) - 1
    LEAST: tl.constexpr = -2147483648
    RANK: tl.constexpr = 8 + BITS
    LINE: tl.constexpr = 8 + 2 * BITS
    LEVEL: tl.constexpr = 8 + 3 * BITS
    level_stride = parents * width
    line_stride = tl.where(parents > 1, width, 0)
    slots = tl.arange(0, SLOTS)
    # A node in waiting: cost, cost of its parent, and one integer that packs, from its lowest bit
    # on, the row of the parent, the candidate index, its rank, the index of the parent, the level.
    high = tl.full([SLOTS], NEVER, tl.int32)
    low = tl.zeros([SLOTS], tl.int32)
    above_high, above_low = split(tl.zeros([SLOTS], tl.float64))
    packed = tl.zeros([SLOTS], tl.int32)
    first, first_index = record(records, tl.zeros([], tl.int32), (limit > 1) & (depth > 0))
    first_high, first_low = split(first)
    high = tl.where(slots == 0, first_high, high)
    low = tl.where(slots == 0, first_low, low)
    packed = tl.where(slots == 0, first_index << 8, packed)
    best = tl.min(high)
    row = tl.full([], 1, tl.int32)
    while (row < limit) & (best < NEVER):
        tied = high == best
        # Of one node as a rule; none of these waits for another.
        node = tl.max(tl.where(tied, packed, 0))
        best_low = tl.max(tl.where(tied, low, LEAST))
        parent_high = tl.max(tl.where(tied, above_high, LEAST))
        parent_low = tl.max(tl.where(tied, above_low, LEAST))
        if tl.sum(tied.to(tl.int32)) > 1:
            best_low = tl.min(tl.where(tied, low, _LARGEST))
            tied = tied & (low == best_low)
            if tl.sum(tied.to(tl.int32)) > 1:
                # No two slots have one parent, so the paths of the parents settle it.
                tied = first_path(
                    tied, packed & 255, packed >> LEVEL, out_parents, indices, BITS, PATH_WORDS
                )
            node = tl.max(tl.where(tied, packed, 0))
            parent_high = tl.max(tl.where(tied, above_high, LEAST))
            parent_low = tl.max(tl.where(tied, above_low, LEAST))
        index = (node >> 8) & MASK
        rank = (node >> RANK) & MASK
        line = (node >> LINE) & MASK
        level = node >> LEVEL
        after, next_index = record(
            records, level * level_stride + line * line_stride + rank + 1, rank + 1 < width
        )
        below, child_index = record(
            records, (level + 1) * level_stride + index * line_stride, level + 1 < depth
        )
        token = tl.load(tokens + level * width + index)
        cost = join(best, best_low)
        tl.store(out_parents + row, node & 255)
        tl.store(out_depths + row, level + 1)
        tl.store(out_scores + row, 0.0 - cost)
        tl.store(indices + row, index)
        next_high, next_low = split(join(parent_high, parent_low) + after)
        child_high, child_low = split(cost + below)
        # The fields that stay, the next rank above the next index.
        kept = node & ~((MASK << RANK) | (MASK << 8))
        sibling = kept | ((rank + 1) << RANK) | (next_index << 8)
        child = ((level + 1) << LEVEL) | (index << LINE) | (child_index << 8) | row
        fresh = slots == row
        high = tl.where(fresh, child_high, tl.where(tied, next_high, high))
        low = tl.where(fresh, child_low, tl.where(tied, next_low, low))
        packed = tl.where(fresh, child, tl.where(tied, sibling, packed))
        above_high = tl.where(fresh, best, above_high)
        above_low = tl.where(fresh, best_low, above_low)
        tl.store(out_tokens + row, token)
        best = tl.min(high)
        row += 1
    return row
