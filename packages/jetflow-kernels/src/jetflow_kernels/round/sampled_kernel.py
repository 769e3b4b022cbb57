"""Triton: one pass over the logits that draws a token of each row, greedily or with noise.

Values are compared in float64, where a logit plus its noise loses nothing: which part a token is
in, and what else is there, cannot change a value.
"""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.vocabulary_kernel import load_part

_LAST_TOKEN = tl.constexpr(2147483647)


@triton.jit
def gumbel_of(raw: tl.tensor) -> tl.tensor:
    """The float32 Gumbel numbers -log(-log(u)) of 64 random bits; u from the upper 52.

    Near 1 a float32 cannot hold u, but it can hold 1 - u, in which the large numbers lie.
    """
    low = raw >= 0
    bits = tl.where(low, raw, ~raw) >> 12
    # The smaller one of u and 1 - u: half a step above the bits, times 2**-52.
    tail = (2 * bits + 1).to(tl.float32) * 1.1102230246251565e-16
    rounded = tl.where(low, tail, 1.0 - tail)
    # log(u) = log(rounded) - missed, to first order.
    missed = tl.where(low, 0.0, tail - (1.0 - rounded))
    return -tl.log(missed - tl.log(rounded))


@triton.jit
def gumbel_tile(
    seed: tl.tensor, place: tl.tensor, first: tl.tensor, COUNT: tl.constexpr
) -> tl.tensor:
    """The Gumbel numbers of ``COUNT`` tokens from ``first``, both multiples of 4, at a place."""
    block = (first // 4 + 1 + tl.arange(0, COUNT // 4)).to(tl.uint64)
    zero = block * 0
    a, b, c, d = tl.philox(seed, block, zero, zero + place.to(tl.uint64), zero)
    return tl.interleave(
        tl.interleave(
            gumbel_of(a.to(tl.int64, bitcast=True)), gumbel_of(c.to(tl.int64, bitcast=True))
        ),
        tl.interleave(
            gumbel_of(b.to(tl.int64, bitcast=True)), gumbel_of(d.to(tl.int64, bitcast=True))
        ),
    )


@triton.jit(do_not_specialize=["parts"])
def sampled_part_kernel(
    logits: tl.tensor,
    temperatures: tl.tensor,
    seeds: tl.tensor,
    positions: tl.tensor,
    part_values: tl.tensor,
    part_tokens: tl.tensor,
    part_broken: tl.tensor,
    stride: tl.tensor,
    vocabulary: tl.tensor,
    parts: tl.tensor,
    PART: tl.constexpr,
) -> None:
    """The greatest logit plus noise of one part of one row, its token, and whether one is NaN."""
    row = tl.program_id(0).to(tl.int64)
    logit, tokens, inside, broken = load_part(logits, stride, vocabulary, PART)
    values = logit.to(tl.float64)
    temperature = tl.load(temperatures + row)
    sane = (temperature >= 0) & (temperature < float("inf"))
    if sane & (temperature > 0):
        place = tl.load(positions + row).to(tl.int64) + 1
        noise = gumbel_tile(tl.load(seeds + row), place, tl.program_id(1) * PART, PART)
        values += noise.to(tl.float64) * temperature.to(tl.float64)
    best = tl.max(values)
    token = tl.min(tl.where(inside & (values == best), tokens, _LAST_TOKEN))
    place = row * parts + tl.program_id(1)
    tl.store(part_values + place, best)
    tl.store(part_tokens + place, token)
    tl.store(part_broken + place, tl.where(sane, broken, 1))


@triton.jit(do_not_specialize=["parts"])
def sampled_merge_kernel(
    part_values: tl.tensor,
    part_tokens: tl.tensor,
    part_broken: tl.tensor,
    picks: tl.tensor,
    broken: tl.tensor,
    parts: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    """The pick of one row, and whether the row is broken."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    inside = part < parts
    place = row * parts + part
    values = tl.load(part_values + place, mask=inside, other=-float("inf"))
    tokens = tl.load(part_tokens + place, mask=inside, other=_LAST_TOKEN)
    flags = tl.load(part_broken + place, mask=inside, other=0)
    # Parts that do not exist have the last token of all, which loses every tie.
    tl.store(picks + row, tl.min(tl.where(values == tl.max(values), tokens, _LAST_TOKEN)))
    tl.store(broken + row, tl.max(flags) > 0)
