"""Triton: exact best-first trees of many rows, found depth by depth, one program a request.

The tree of a budget is the set of the best nodes in an order in which parents precede children, so
it need not be found one node after the other. A list of nodes grows depth by depth: of the children
of its last depth those below a bound join it, and the bound, above which no node of the tree can
lie, falls as the list grows. At the end the list is ranked. It is in the order of depths and paths,
so that only costs are compared, and equal ones by their place in the list.
"""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.build_bound_kernel import KEYS
from jetflow_kernels.round.build_kernel import allowed_rows, grow_by_scans, start_tree
from jetflow_kernels.round.build_rank_kernel import (
    DEPTH_SHIFT,
    INDEX,
    PARENT_SHIFT,
    complete,
    rank_rows,
)

_LARGEST = tl.constexpr(2147483647)
_STEPS = tl.constexpr(12)


@triton.jit
def lower_bound(
    keys: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    limit: tl.tensor,
    enough: tl.tensor,
    ROOM: tl.constexpr,
) -> tl.tensor:
    """A bound below which at least ``limit`` nodes of the list lie, and at most ``enough``.

    More than those only where so many keys lie so close.

    Args:
        keys: pointer to the keys of the list.
        count: nodes of the list, at least ``limit`` of them below ``bound``.
        bound: the bound so far, above all keys that matter.
        limit: rows of the tree.
        enough: at least ``limit``.
        ROOM: most nodes of a list.
    """
    place = tl.arange(0, ROOM)
    own = tl.load(keys + place, mask=place < count, other=_LARGEST)
    low = tl.zeros([], tl.int32)
    found = tl.sum((own < bound).to(tl.int32))
    step = 0
    while (found > enough) & (step < _STEPS) & (bound - low > 1):
        middle = low + (bound - low) // 2
        below = tl.sum((own < middle).to(tl.int32))
        fits = below >= limit
        bound = tl.where(fits, middle, bound)
        found = tl.where(fits, below, found)
        low = tl.where(fits, low, middle)
        step += 1
    return bound


@triton.jit
def add_children(
    log_probs: tl.tensor,
    costs: tl.tensor,
    keys: tl.tensor,
    infos: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    count: tl.tensor,
    level: tl.tensor,
    bound: tl.tensor,
    scale: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Lists the children of the nodes ``first`` to ``last`` whose keys lie below the bound.

    Returns:
        Nodes of the list, more than ``ROOM`` if it would not hold them.
    """
    table = log_probs + level * parents * width
    line_stride = tl.where(parents > 1, width, 0)
    start = first * WIDTH
    while (start < last * WIDTH) & (count <= ROOM):
        at = start + tl.arange(0, BLOCK)
        column = at % WIDTH
        parent = at // WIDTH
        exists = (parent < last) & (column < width)
        above = tl.load(costs + parent, mask=exists, other=0.0)
        line = tl.load(infos + parent, mask=exists, other=0) & INDEX
        log_prob = tl.load(table + line * line_stride + column, mask=exists, other=-float("inf"))
        cost = above - log_prob.to(tl.float64)
        scaled = cost * scale
        kept = exists & (scaled < bound.to(tl.float64))
        taken = kept.to(tl.int32)
        place = count + tl.cumsum(taken, 0) - 1
        stored = kept & (place < ROOM)
        tl.store(costs + place, cost, mask=stored)
        tl.store(keys + place, tl.where(kept, scaled, 0.0).to(tl.int32), mask=stored)
        info = (parent << PARENT_SHIFT) | ((level + 1) << DEPTH_SHIFT) | column
        tl.store(infos + place, info, mask=stored)
        count += tl.sum(taken)
        start += BLOCK
    return count


@triton.jit
def sweep(
    log_probs: tl.tensor,
    costs: tl.tensor,
    keys: tl.tensor,
    infos: tl.tensor,
    scale: tl.tensor,
    limit: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Lists all nodes that can be rows, the root first.

    Returns:
        Nodes of the list, more than ``ROOM`` if it did not hold them; the bound of their keys.
    """
    tl.store(costs, 0.0)
    tl.store(keys, 0)
    tl.store(infos, 0)
    tl.debug_barrier()
    bound = tl.full([], KEYS, tl.float64).to(tl.int32)
    first = tl.zeros([], tl.int32)
    last = first + 1
    count = first + 1
    seen = first
    level = first
    while (level < depth) & (first < last):
        count = add_children(
            log_probs, costs, keys, infos, first, last, count, level, bound, scale, parents, width,
            WIDTH, ROOM, BLOCK,
        )  # fmt: skip
        # Written by other threads than those that read it now.
        tl.debug_barrier()
        level = tl.where(count > ROOM, depth, level + 1)
        # A bound costs as much as a block of candidates: not for a few new nodes.
        if (level < depth) & (count > limit) & ((count - seen) * 8 > limit * 3):
            bound = lower_bound(keys, count, bound, limit, limit + limit // 16, ROOM)
            seen = count
        first = last
        last = count
    return count, bound


@triton.jit(do_not_specialize=["capacity", "depth", "parents", "width", "num_words"])
def sweep_kernel(
    tokens: tl.tensor,
    log_probs: tl.tensor,
    good: tl.tensor,
    scales: tl.tensor,
    list_costs: tl.tensor,
    list_marks: tl.tensor,
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
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One tree; the tensors are those of ``build_tree``, the others room of its op."""
    request = tl.program_id(0).to(tl.int64)
    tokens += request * depth * width
    log_probs += request * depth * parents * width
    indices += request * capacity
    out_tokens += request * capacity
    out_parents += request * capacity
    out_depths += request * capacity
    out_scores += request * capacity
    costs = list_costs + request * 2 * ROOM
    keys = list_marks + request * 3 * ROOM
    infos = keys + ROOM
    valid, limit = allowed_rows(
        good + request * depth, tl.load(budgets + request), depth, capacity, DEPTHS
    )
    scale = tl.load(scales + request)
    root = tl.load(roots + request)
    count = tl.full([], ROOM, tl.int32) + 1
    bound = count
    if (limit > 1) & (scale > 0):
        count, bound = sweep(
            log_probs, costs, keys, infos, scale, limit, depth, parents, width, WIDTH, ROOM, BLOCK
        )
    row = tl.full([], 1, tl.int32)
    if count > ROOM:
        # The root alone, too many nodes with nearly one score, or scores out of all proportion.
        start_tree(out_tokens, out_parents, out_depths, out_scores, root)
        row = grow_by_scans(
            tokens, log_probs, indices, out_tokens, out_parents, out_depths, out_scores,
            limit, depth, parents, width, SLOTS, WIDTH, BITS, PATH_WORDS,
        )  # fmt: skip
    else:
        bound = lower_bound(keys, count, bound, limit, limit + limit // 2, ROOM)
        row = rank_rows(
            tokens, root, costs, keys, infos, out_tokens, out_parents, out_depths, out_scores,
            count, bound, limit, width, SLOTS // 2, ROOM,
        )  # fmt: skip
    tl.store(out_nodes + request, row)
    tl.store(out_valid + request, valid)
    complete(
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
