"""Triton: candidates along the drafted paths, one program a request."""

from __future__ import annotations

import triton
import triton.language as tl

_NONE = tl.constexpr(float("-inf"))
_LEAST = tl.constexpr(1.8048513878454153e-35)
"""exp(-80): the rest is never taken to be less, as where heads are trained."""


@triton.jit
def _log(value: tl.tensor) -> tl.tensor:
    """Natural logarithm, -inf for 0."""
    return tl.where(value == 0.0, _NONE, tl.log(tl.where(value == 0.0, 1.0, value)))


@triton.jit
def _sums(scores: tl.tensor) -> tl.tensor:
    """Log-sum-exp of each line; -inf for a line of -inf."""
    top = tl.max(scores, axis=1)
    top = tl.where(top == _NONE, 0.0, top)
    return top + _log(tl.sum(tl.exp(scores - top[:, None]), axis=1))


@triton.jit
def _tempered(scores: tl.tensor, kept: tl.tensor, heat: tl.tensor) -> tl.tensor:
    """Scores [K, Q] over ``heat``; what the ``kept`` ones and their rest sum to is divided out."""
    mass = tl.sum(tl.where(kept, tl.exp(scores), 0.0), axis=1)
    rest = _log(tl.maximum(1.0 - mass, 0.0)) / heat
    sums = _sums(tl.where(kept, scores / heat, _NONE))
    top = tl.maximum(sums, rest)
    total = top + tl.log(tl.exp(sums - top) + tl.exp(rest - top))
    changed = scores / heat - total[:, None]
    return tl.minimum(tl.where(heat == 1.0, scores, changed), 0.0)


@triton.jit(do_not_specialize=["depths", "width", "pool"])
def path_kernel(
    first_tokens: tl.tensor,
    first: tl.tensor,
    pooled: tl.tensor,
    base: tl.tensor,
    bias: tl.tensor,
    temperatures: tl.tensor,
    tokens: tl.tensor,
    table: tl.tensor,
    depths: tl.tensor,
    width: tl.tensor,
    pool: tl.tensor,
    WIDTH: tl.constexpr,
    POOL: tl.constexpr,
) -> None:
    """One request of ``path_candidates``."""
    request = tl.program_id(0).to(tl.int64)
    lines, places = tl.arange(0, WIDTH), tl.arange(0, POOL)
    inside, offered = lines < width, places < pool
    heat = tl.load(temperatures + request).to(tl.float32)
    tokens += request * (depths + 1) * width
    table += request * (depths + 1) * width * width
    first += request * width
    named = tl.load(first_tokens + request * width + lines, mask=inside, other=0)
    tl.store(tokens + lines, named, mask=inside)
    chance = tl.load(first + lines, mask=inside, other=_NONE)
    # The same line for every parent; a line as wide as a pool keeps one shape for all depths.
    wide = tl.load(first + places, mask=places < width, other=_NONE)
    wide = tl.broadcast_to(wide[None, :], (WIDTH, POOL))
    square = inside[:, None] & (places < width)[None, :]
    spot = lines[:, None] * width + places[None, :]
    tl.store(table + spot, _tempered(wide, square, heat), mask=square)
    chance = tl.exp(chance)
    parents = lines
    for depth in range(depths):
        line = request * depths + depth
        own = tl.load(base + line * pool + places, mask=offered, other=_NONE)
        rows = bias + (line * pool + parents.to(tl.int64)) * pool
        terms = tl.load(
            rows[:, None] + places[None, :], mask=inside[:, None] & offered[None, :], other=0.0
        ).to(tl.float32)
        left = 1.0 - tl.minimum(tl.sum(tl.exp(own)), 1.0)
        rest = tl.log(tl.maximum(left, _LEAST))
        scores = own[None, :] + terms
        sums = _sums(scores)
        top = tl.maximum(sums, rest)
        scores -= (top + tl.log(tl.exp(sums - top) + tl.exp(rest - top)))[:, None]
        scores = tl.minimum(scores, 0.0)
        reached = tl.sum(tl.where(inside[:, None], chance[:, None] * tl.exp(scores), 0.0), axis=0)
        # NaN and what is not offered come last, so that ranks stay a permutation.
        key = tl.where(reached == reached, reached, -1.0)
        key = tl.where(offered, key, -2.0)
        before = (key[:, None] > key[None, :]) | (
            (key[:, None] == key[None, :]) & (places[:, None] < places[None, :])
        )
        rank = tl.sum(before.to(tl.int32), axis=0)
        kept = inside[:, None] & (rank < width)[None, :]
        spot = lines[:, None] * width + rank[None, :]
        found = table + (depth + 1) * width * width
        tl.store(found + spot, _tempered(scores, kept, heat), mask=kept)
        pool_tokens = tl.load(pooled + line * pool + places, mask=offered, other=0)
        tl.store(tokens + (depth + 1) * width + rank, pool_tokens, mask=rank < width)
        mine = lines[:, None] == rank[None, :]
        parents = tl.sum(tl.where(mine, places[None, :], 0), axis=1)
        chance = tl.sum(tl.where(mine, reached[None, :], 0.0), axis=1)
