"""Triton: the rows of a tree out of a list of its nodes: ranked by counting, then written."""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.frontier_kernel import climb, fill_padding, own_bits

INDEX = tl.constexpr(127)
DEPTH_SHIFT = tl.constexpr(7)
DEPTH = tl.constexpr(63)
PARENT_SHIFT = tl.constexpr(13)
"""What a listed node packs: candidate index, depth, place of the parent in the list."""
_LARGEST = tl.constexpr(2147483647)
_BLOCK = tl.constexpr(32)


@triton.jit
def gather_below(
    costs: tl.tensor,
    keys: tl.tensor,
    near_costs: tl.tensor,
    places: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    ROOM: tl.constexpr,
) -> tl.tensor:
    """Copies cost and place of the nodes below a bound, in the order of the list; how many."""
    place = tl.arange(0, ROOM)
    own = tl.load(keys + place, mask=place < count, other=_LARGEST)
    near = own < bound
    cost = tl.load(costs + place, mask=near, other=0.0)
    taken = near.to(tl.int32)
    at = tl.cumsum(taken, 0) - 1
    tl.store(near_costs + at, cost, mask=near)
    tl.store(places + at, place, mask=near)
    # Written by other threads than those that read it now.
    tl.debug_barrier()
    return tl.sum(taken)


@triton.jit
def ranks_of(costs: tl.tensor, base: tl.tensor, total: tl.tensor, TILE: tl.constexpr) -> tl.tensor:
    """[TILE]: how many of ``total`` nodes come before each from ``base``, by cost, then place."""
    mine = base + tl.arange(0, TILE)
    own = tl.load(costs + mine, mask=mine < total, other=float("inf"))[None, :]
    before = tl.zeros([_BLOCK, TILE], tl.int32)
    for start in range(0, total, _BLOCK):
        theirs = start + tl.arange(0, _BLOCK)
        other = tl.load(costs + theirs, mask=theirs < total, other=float("inf"))[:, None]
        if start >= base + TILE:
            before += (other < own).to(tl.int32)
        elif start + _BLOCK <= base:
            before += (other <= own).to(tl.int32)
        else:
            first = (other == own) & (theirs[:, None] < mine[None, :])
            before += ((other < own) | first).to(tl.int32)
    return tl.sum(before, axis=0)


@triton.jit
def rank_rows(
    tokens: tl.tensor,
    root: tl.tensor,
    costs: tl.tensor,
    keys: tl.tensor,
    infos: tl.tensor,
    out_tokens: tl.tensor,
    out_parents: tl.tensor,
    out_depths: tl.tensor,
    out_scores: tl.tensor,
    count: tl.tensor,
    bound: tl.tensor,
    limit: tl.tensor,
    width: tl.tensor,
    TILE: tl.constexpr,
    ROOM: tl.constexpr,
) -> tl.tensor:
    """Writes the first ``limit`` of the listed nodes as rows; returns how many there are.

    Args:
        tokens: pointer to the candidates of the request.
        root: its root.
        costs: pointer to the costs of the list, and behind those to as much room again.
        keys: pointer to the keys of the list, to be overwritten.
        infos: pointer to the packed nodes of the list, and behind those to as much room again.
        out_tokens: pointer to the rows' tokens.
        out_parents: likewise.
        out_depths: likewise.
        out_scores: likewise.
        count: nodes of the list.
        bound: no row has this key or one above it.
        limit: most rows.
        width: number of candidates.
        TILE: nodes that are ranked at a time.
        ROOM: most nodes of a list.
    """
    near_costs = costs + ROOM
    places = infos + ROOM
    total = gather_below(costs, keys, near_costs, places, count, bound, ROOM)
    rows = keys
    for base in range(0, total, TILE):
        mine = base + tl.arange(0, TILE)
        place = tl.load(places + mine, mask=mine < total, other=0)
        tl.store(rows + place, ranks_of(near_costs, base, total, TILE), mask=mine < total)
    tl.debug_barrier()
    for base in range(0, total, TILE):
        mine = base + tl.arange(0, TILE)
        place = tl.load(places + mine, mask=mine < total, other=0)
        row = tl.load(rows + place, mask=mine < total, other=limit)
        written = row < limit
        info = tl.load(infos + place, mask=written, other=0)
        cost = tl.load(near_costs + mine, mask=written, other=0.0)
        depth = (info >> DEPTH_SHIFT) & DEPTH
        below = written & (depth > 0)
        token = tl.load(tokens + (depth - 1) * width + (info & INDEX), mask=below, other=0)
        parent = tl.load(rows + (info >> PARENT_SHIFT), mask=below, other=-1)
        tl.store(out_tokens + row, tl.where(below, token, root), mask=written)
        tl.store(out_parents + row, parent, mask=written)
        tl.store(out_depths + row, depth, mask=written)
        tl.store(out_scores + row, 0.0 - cost, mask=written)
    return tl.minimum(total, limit)


@triton.jit
def complete(
    tokens: tl.tensor,
    parents: tl.tensor,
    depths: tl.tensor,
    scores: tl.tensor,
    words: tl.tensor,
    positions: tl.tensor,
    root_position: tl.tensor,
    capacity: tl.tensor,
    num_nodes: tl.tensor,
    num_words: tl.tensor,
    SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """As ``finish``, for several warps: those agree once on how far to climb, not every step."""
    rows = tl.arange(0, SLOTS)
    fill_padding(tokens, parents, depths, scores, rows, num_nodes, capacity)
    depth = tl.load(depths + rows, mask=rows < capacity, other=0)
    tl.store(positions + rows, root_position + depth, mask=rows < capacity)
    columns = tl.arange(0, COLUMNS)[None, :]
    seen = own_bits(rows, columns)
    node = tl.where(rows < num_nodes, rows, 0)[:, None] + columns * 0
    for _ in range(tl.max(depth)):
        node, seen = climb(parents, node, seen, columns)
    inside = (rows < capacity)[:, None] & (columns < num_words)
    tl.store(words + rows[:, None] * num_words + columns, seen, mask=inside)
