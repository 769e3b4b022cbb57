"""Triton: all-children trees, one program a request.

The best row that has no children yet gets its best children, all of them, until the tree is full:
the published builder. Slot i of the frontier is row i while it waits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.build_kernel import allowed_rows, start_tree
from jetflow_kernels.round.frontier_kernel import (
    NEVER,
    best_after,
    finish,
    first_path,
    join,
    split,
)

_LARGEST = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["capacity", "depth", "parents", "width", "children", "num_words"])
def all_children_kernel(
    tokens: tl.tensor,
    log_probs: tl.tensor,
    good: tl.tensor,
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
    children: tl.tensor,
    num_words: tl.tensor,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
    DEPTHS: tl.constexpr,
    BITS: tl.constexpr,
    PATH_WORDS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One tree; the tensors are those of ``build_all_children``."""
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
    tl.store(indices, 0)
    slots = tl.arange(0, SLOTS)
    zero_high, zero_low = split(tl.zeros([SLOTS], tl.float64))
    high = tl.where(slots == 0, zero_high, NEVER)
    low = zero_low
    depth_of = tl.zeros([SLOTS], tl.int32)
    index_of = tl.zeros([SLOTS], tl.int32)
    nothing = tl.zeros([], tl.int32)
    best = tl.min(high)
    row = tl.full([], 1, tl.int32)
    while (row < limit) & (best < NEVER):
        tied = high == best
        best_low = tl.min(tl.where(tied, low, _LARGEST))
        tied = tied & (low == best_low)
        if tl.sum(tied.to(tl.int32)) > 1:
            tied = first_path(tied, slots, depth_of, out_parents, indices, BITS, PATH_WORDS)
        node = tl.max(tl.where(tied, slots, 0))
        level = tl.max(tl.where(tied, depth_of, 0))
        index = tl.max(tl.where(tied, index_of, 0))
        cost = join(best, best_low)
        high = tl.where(tied, NEVER, high)
        line = tl.where((parents > 1) & (level > 0), index, 0)
        table = log_probs + (tl.minimum(level, depth - 1) * parents + line) * width
        sibling, sibling_low, sibling_index = nothing - 1, nothing, nothing
        left = tl.where(level < depth, children, 0)
        while (row < limit) & (left > 0):
            # Siblings come by log-probability, so the cost above them is left out here.
            sibling, sibling_low, sibling_index = best_after(
                table, 1, width, tl.zeros([], tl.float64), sibling, sibling_low, sibling_index,
                WIDTH,
            )  # fmt: skip
            total = cost + join(sibling, sibling_low)
            total = tl.where(sibling < NEVER, total, float("inf"))
            new_high, new_low = split(total)
            found = new_high < NEVER
            left = tl.where(found, left - 1, 0)
            named = tl.load(tokens + level * width + sibling_index, mask=found, other=0)
            tl.store(out_tokens + row, named, mask=found)
            tl.store(out_parents + row, node, mask=found)
            tl.store(out_depths + row, level + 1, mask=found)
            tl.store(out_scores + row, 0.0 - total, mask=found)
            tl.store(indices + row, sibling_index, mask=found)
            fresh = (slots == row) & found
            high = tl.where(fresh, new_high, high)
            low = tl.where(fresh, new_low, low)
            depth_of = tl.where(fresh, level + 1, depth_of)
            index_of = tl.where(fresh, sibling_index, index_of)
            row = tl.where(found, row + 1, row)
        best = tl.min(high)
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
