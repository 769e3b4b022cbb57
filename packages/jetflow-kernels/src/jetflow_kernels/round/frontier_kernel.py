"""Device functions that both tree builders share: exact order, siblings in turn, ancestor words.

A score is kept as its negation, the cost, a float64 that is never below 0, and a cost as two
signed 32-bit halves: the bit patterns of such floats are ordered like the floats, and the least
of 32 integers is one instruction of a warp, where a float64 takes ten shuffles.
"""

from __future__ import annotations

import triton
import triton.language as tl

# High half of an infinite cost: no node. All finite costs are below it.
NEVER = tl.constexpr(0x7FF00000)
_HALF = tl.constexpr(2147483648)
_LARGEST_32 = tl.constexpr(2147483647)
_LARGEST_64 = tl.constexpr(9223372036854775807)


@triton.jit
def split(cost: tl.tensor) -> tl.tensor:
    """The halves (high, low) of costs in float64; each compares as a signed integer."""
    bits = cost.to(tl.int64, bitcast=True)
    return (bits >> 32).to(tl.int32), ((bits & 0xFFFFFFFF) - _HALF).to(tl.int32)


@triton.jit
def join(high: tl.tensor, low: tl.tensor) -> tl.tensor:
    """The float64 cost of its halves."""
    bits = (high.to(tl.int64) << 32) | (low.to(tl.int64) + _HALF)
    return bits.to(tl.float64, bitcast=True)


@triton.jit
def best_after(
    row: tl.tensor,
    stride: tl.tensor,
    width: tl.tensor,
    above: tl.tensor,
    high: tl.tensor,
    low: tl.tensor,
    index: tl.tensor,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """The child that follows one of its siblings, by cost and then by candidate index.

    Comparing sums, not log-probabilities, puts siblings in index order where rounding makes two
    different log-probabilities the same score, as the order of nodes asks.

    Args:
        row: pointer to the log-probabilities of the children.
        stride: between two of them.
        width: number of candidates.
        above: cost of the parent, float64.
        high: high half of the sibling's cost; -1 asks for the best child of all.
        low: low half.
        index: candidate index of the sibling.
        WIDTH: ``width`` or more, a power of two.

    Returns:
        High half of its cost (NEVER if there is none), low half, candidate index.
    """
    candidates = tl.arange(0, WIDTH)
    inside = candidates < width
    log_probs = tl.load(row + candidates * stride, mask=inside, other=-float("inf"))
    highs, lows = split(above - log_probs.to(tl.float64))
    same = highs == high
    later = (lows > low) | ((lows == low) & (candidates > index))
    after = inside & ((highs > high) | (same & later))
    best = tl.min(tl.where(after, highs, NEVER))
    after = after & (highs == best)
    best_low = tl.min(tl.where(after, lows, _LARGEST_32))
    after = after & (lows == best_low)
    found = tl.min(tl.where(after, candidates, WIDTH - 1))
    return best, best_low, found


@triton.jit
def first_path(
    tied: tl.tensor,
    nodes: tl.tensor,
    depths: tl.tensor,
    parents: tl.tensor,
    indices: tl.tensor,
    BITS: tl.constexpr,
    WORDS: tl.constexpr,
) -> tl.tensor:
    """Of nodes with one score: the shallowest, and of those the one whose path comes first.

    Paths are read back from the rows that are written already, since equal scores are rare and
    carrying paths along would cost every step.

    Args:
        tied: bool [S], the nodes in question.
        nodes: [S], the rows at which their paths, as far as they differ, end.
        depths: [S], depths of those rows.
        parents: pointer to the parents of all rows.
        indices: pointer to the candidate indices of all rows.
        BITS: bits of a candidate index.
        WORDS: 63-bit words that hold the digits of the deepest path.

    Returns:
        bool [S] with one element true.
    """
    depth = tl.min(tl.where(tied, depths, _LARGEST_32))
    tied = tied & (depths == depth)
    # The rows were written by one thread and are now read by others.
    tl.debug_barrier()
    for word in tl.static_range(WORDS):
        key = tl.zeros_like(nodes).to(tl.int64)
        node = nodes
        digit = depth - 1
        while digit >= 0:
            value = tl.load(indices + node, mask=tied, other=0).to(tl.int64)
            place = digit - word * (63 // BITS)
            held = (place >= 0) & (place < 63 // BITS)
            shift = tl.where(held, (63 // BITS - 1 - place) * BITS, 0)
            key = tl.where(held, key | (value << shift), key)
            node = tl.load(parents + node, mask=tied, other=0)
            digit -= 1
        tied = tied & (key == tl.min(tl.where(tied, key, _LARGEST_64)))
    return tied


@triton.jit
def climb(parents: tl.tensor, node: tl.tensor, seen: tl.tensor, columns: tl.tensor) -> tl.tensor:
    """One step up from every row's node: the parents, and what is seen with them.

    Nodes are there once a word, as the words are laid out: moving them costs more than a load.
    """
    climbing = node > 0
    node = tl.load(parents + node, mask=climbing, other=0).to(tl.int32)
    bit = tl.full(node.shape, 1, tl.int64) << (node % 64).to(tl.int64)
    return node, tl.where(climbing & (node // 64 == columns), seen | bit, seen)


@triton.jit
def own_bits(rows: tl.tensor, columns: tl.tensor) -> tl.tensor:
    """[S, COLUMNS] int64: the words of rows that see themselves alone."""
    place = rows[:, None] + columns * 0
    bit = tl.full(place.shape, 1, tl.int64) << (place % 64).to(tl.int64)
    return tl.where(place // 64 == columns, bit, 0)


@triton.jit
def write_words(
    words: tl.tensor,
    parents: tl.tensor,
    rows: tl.tensor,
    capacity: tl.tensor,
    num_nodes: tl.tensor,
    num_words: tl.tensor,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Writes the ancestor words of one tree by walking up from every row at once.

    Args:
        words: pointer to [capacity, num_words] int64.
        parents: pointer to [capacity], each below its row, in rows below ``num_nodes``.
        rows: [S], 0 to S - 1.
        capacity: rows to write.
        num_nodes: rows that hold a node; the others see themselves alone.
        num_words: words of a row.
        COLUMNS: ``num_words`` or more, a power of two.
    """
    columns = tl.arange(0, COLUMNS)[None, :]
    seen = own_bits(rows, columns)
    node = tl.where(rows < num_nodes, rows, 0)[:, None] + columns * 0
    while tl.max(node) > 0:
        node, seen = climb(parents, node, seen, columns)
    inside = (rows < capacity)[:, None] & (columns < num_words)
    tl.store(words + rows[:, None] * num_words + columns, seen, mask=inside)


@triton.jit
def fill_padding(
    tokens: tl.tensor, parents: tl.tensor, depths: tl.tensor, scores: tl.tensor,
    rows: tl.tensor, num_nodes: tl.tensor, capacity: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """Writes the rows that hold no node; whatever is written can be read by all threads then."""
    padding = (rows >= num_nodes) & (rows < capacity)
    tl.store(tokens + rows, 0, mask=padding)
    tl.store(parents + rows, -1, mask=padding)
    tl.store(depths + rows, 0, mask=padding)
    tl.store(scores + rows, -float("inf"), mask=padding)
    tl.debug_barrier()


@triton.jit
def finish(
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
    """Fills the padding of one tree and derives positions and ancestor words."""
    rows = tl.arange(0, SLOTS)
    fill_padding(tokens, parents, depths, scores, rows, num_nodes, capacity)
    depth = tl.load(depths + rows, mask=rows < capacity, other=0)
    tl.store(positions + rows, root_position + depth, mask=rows < capacity)
    write_words(words, parents, rows, capacity, num_nodes, num_words, COLUMNS)
