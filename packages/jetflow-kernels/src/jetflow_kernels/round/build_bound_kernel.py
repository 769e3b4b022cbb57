"""Triton: the check of a request's candidates, and beside it a first bound on what its tree costs.

Any nodes of the full tree that are known, as many as are wanted, bound the worst score of the best
ones. Known without a search are all nodes of the first two depths and, below each of the second,
the chain of best children.
"""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.build_kernel import check_level

KEYS = tl.constexpr(2.0**30)
"""A cost at the first bound has this key; keys are integers and ordered like costs."""
# More than float32 loses in a sum of 64 costs, and than packing does.
_SLACK = tl.constexpr(1e-3)
_INDEX = tl.constexpr(127)
_STEPS = tl.constexpr(8)
_BLOCK = tl.constexpr(1024)


@triton.jit(do_not_specialize=["capacity", "depth", "parents", "width"])
def check_and_bound_kernel(
    tokens: tl.tensor,
    log_probs: tl.tensor,
    budgets: tl.tensor,
    good: tl.tensor,
    scales: tl.tensor,
    capacity: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
    PARENTS: tl.constexpr,
    LENGTHS: tl.constexpr,
) -> None:
    """Program (request, level) checks a depth, the one past the last depth bounds the costs."""
    request = tl.program_id(0).to(tl.int64)
    level = tl.program_id(1)
    if level < depth:
        check_level(
            tokens, log_probs, good, request * depth + level, parents, width, WIDTH, PARENTS
        )
    else:
        table = log_probs + request * depth * parents * width
        wanted = tl.minimum(tl.load(budgets + request), capacity).to(tl.int32) - 1
        bound = first_bound(table, wanted, depth, parents, width, WIDTH, PARENTS, LENGTHS)
        # NaN fails this comparison as well.
        usable = bound < 1e30
        tl.store(scales + request, tl.where(usable, KEYS / bound.to(tl.float64), 0.0))


@triton.jit
def costs_of(
    table: tl.tensor, level: tl.tensor, line: tl.tensor, column: tl.tensor,
    depth: tl.tensor, parents: tl.tensor, width: tl.tensor,
) -> tl.tensor:  # fmt: skip
    """The float32 costs of candidates, infinite where there are none."""
    inside = (level < depth) & (line < parents) & (column < width)
    place = (level * parents + line) * width + column
    log_probs = tl.load(table + place, mask=inside, other=-float("inf")).to(tl.float32)
    # What is out of contract is found elsewhere, but must not lead a chain astray here.
    return tl.maximum(0.0 - log_probs, 0.0)


@triton.jit
def best_chains(
    table: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
    PARENTS: tl.constexpr,
    LENGTHS: tl.constexpr,
) -> tl.tensor:
    """[LENGTHS, WIDTH] float32: what so many best children cost below a candidate of depth 2."""
    lines = tl.arange(0, LENGTHS * PARENTS)[:, None]
    columns = tl.arange(0, WIDTH)[None, :]
    costs = costs_of(table, lines // PARENTS + 2, lines % PARENTS, columns, depth, parents, width)
    best, place = tl.min(costs, axis=1, return_indices=True)
    # Rounded up, the last bits make room for the index: one number to look up a step.
    packed = (best.to(tl.int32, bitcast=True) + _INDEX) & ~_INDEX
    packed |= place
    index = tl.arange(0, WIDTH)
    lengths = tl.arange(0, LENGTHS)[:, None]
    chain = tl.zeros([WIDTH], tl.float32)
    chains = tl.zeros([LENGTHS, WIDTH], tl.float32)
    for length in range(1, LENGTHS):
        line = tl.where(parents > 1, index, 0)
        step = tl.gather(packed, (length - 1) * PARENTS + line, 0)
        index = step & _INDEX
        chain += (step & ~_INDEX).to(tl.float32, bitcast=True)
        chains = tl.where(lengths == length, chain[None, :], chains)
    return chains


@triton.jit
def first_bound(
    table: tl.tensor,
    wanted: tl.tensor,
    depth: tl.tensor,
    parents: tl.tensor,
    width: tl.tensor,
    WIDTH: tl.constexpr,
    PARENTS: tl.constexpr,
    LENGTHS: tl.constexpr,
) -> tl.tensor:
    """A float32 cost above that of ``wanted`` nodes, or above all costs if so many are not known.

    Not finite, or huge, where float32 cannot tell.
    """
    upper = tl.arange(0, WIDTH)
    nothing = tl.zeros([WIDTH], tl.int32)
    first = costs_of(table, nothing, nothing, upper, depth, parents, width)
    line = tl.where(parents > 1, upper, 0)[:, None]
    second = costs_of(table, nothing[:, None] + 1, line, upper[None, :], depth, parents, width)
    second += first[:, None]
    chains = best_chains(table, depth, parents, width, WIDTH, PARENTS, LENGTHS)
    known = second[None, :, :] + chains[:, None, :]
    infinite = float("inf")
    finite = tl.sum((known < infinite).to(tl.int32)) + tl.sum((first < infinite).to(tl.int32))
    high = tl.max(tl.where(known < infinite, known, 0.0))
    high = tl.maximum(high, tl.max(tl.where(first < infinite, first, 0.0)))
    if finite >= wanted:
        low = high * 0
        for _ in range(_STEPS):
            middle = (low + high) * 0.5
            below = tl.sum((known <= middle).to(tl.int32)) + tl.sum((first <= middle).to(tl.int32))
            enough = below >= wanted
            high = tl.where(enough, middle, high)
            low = tl.where(enough, low, middle)
    else:
        high = largest(table, depth * parents * width) * depth
    return high * (1.0 + _SLACK) + 1e-30


@triton.jit
def largest(table: tl.tensor, count: tl.tensor) -> tl.tensor:
    """The largest finite cost of a table."""
    block = tl.arange(0, _BLOCK)
    most = tl.full([], 0.0, tl.float32)
    for start in range(0, count, _BLOCK):
        values = tl.load(table + start + block, mask=start + block < count, other=0.0)
        costs = 0.0 - values.to(tl.float64)
        costs = tl.where(costs < float("inf"), costs, 0.0).to(tl.float32)
        most = tl.maximum(most, tl.max(costs))
    return most
