"""Triton: the greatest of 16-bit logits, in keys of 32 bits, of which a warp finds the greatest.

In a part of a row a key is the logit's bits, ordered like the floats, above the token counted
downwards; where parts are merged, above the place among what the parts found, downwards. Keys are
distinct and above 0, so the one that follows a key is the greatest of their differences to it,
wrapped around: nothing has to be taken out.
"""

from __future__ import annotations

import triton
import triton.language as tl

_SIGN = tl.constexpr(0x80000000)
_VALUE = tl.constexpr(0xFFFF0000)
_LOW = tl.constexpr(0xFFFF)


@triton.jit
def keys_of_16_bits(values: tl.tensor, places: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The uint32 keys of logits without NaN that type ``KIND`` can hold; -0.0 counts as 0.0."""
    # Adding 0 turns -0.0 into 0.0 and changes nothing else.
    values += 0.0
    if KIND == tl.bfloat16:
        bits = values.to(tl.int32, bitcast=True)
    else:
        bits = values.to(KIND).to(tl.int16, bitcast=True).to(tl.int32) << 16
    flipped = (bits >> 31).to(tl.uint32, bitcast=True) | _SIGN
    ordered = bits.to(tl.uint32, bitcast=True) ^ flipped
    return (ordered & _VALUE) | (places.to(tl.uint32) ^ _LOW)


@triton.jit
def greatest(keys: tl.tensor) -> tl.tensor:
    """The greatest of [A, B] keys, by columns first: short chains of instructions."""
    return tl.max(tl.max(keys, axis=0), axis=0)


@triton.jit
def next_key(keys: tl.tensor, best: tl.tensor) -> tl.tensor:
    """The greatest of the [A, B] keys below ``best``, where there is one."""
    return best + greatest(keys - best)


@triton.jit(do_not_specialize=["parts", "count"])
def narrow_part_kernel(
    logits: tl.tensor,
    part_keys: tl.tensor,
    part_maxima: tl.tensor,
    part_sums: tl.tensor,
    stride: tl.tensor,
    vocabulary: tl.tensor,
    parts: tl.tensor,
    count: tl.tensor,
    LINES: tl.constexpr,
    LINE: tl.constexpr,
) -> None:
    """The ``count`` greatest keys of one part of one row, its maximum, its sum of exponentials."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    tokens = tl.program_id(1) * (LINES * LINE) + places
    # What is past the end comes after every token, of which a row has at least ``count``.
    values = tl.load(
        logits + row * stride + tokens, mask=tokens < vocabulary, other=-float("inf")
    ).to(tl.float32)
    clean = tl.where(values == values, values, -float("inf"))
    maximum = greatest(clean)
    shift = tl.where(tl.abs(maximum) < float("inf"), maximum, 0.0)
    # NaN stays in the sum, and makes the row's NaN.
    total = tl.sum(tl.sum(tl.exp(values - shift), axis=0), axis=0)
    place = row * parts + tl.program_id(1)
    tl.store(part_maxima + place, maximum)
    # Infinite logits are as little a distribution.
    tl.store(part_sums + place, tl.where(maximum == float("inf"), float("nan"), total))
    keys = keys_of_16_bits(clean, places, logits.dtype.element_ty)
    best = greatest(keys)
    for rank in range(count):
        tl.store(part_keys + place * count + rank, best.to(tl.int32, bitcast=True))
        best = next_key(keys, best)


@triton.jit(do_not_specialize=["parts", "count"])
def narrow_merge_kernel(
    logits: tl.tensor,
    part_keys: tl.tensor,
    part_maxima: tl.tensor,
    part_sums: tl.tensor,
    tokens: tl.tensor,
    log_probs: tl.tensor,
    lse: tl.tensor,
    stride: tl.tensor,
    parts: tl.tensor,
    count: tl.tensor,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
    COUNT: tl.constexpr,
    LINES: tl.constexpr,
    LINE: tl.constexpr,
) -> None:
    """The ``count`` greatest logits of one row and the log-sum-exp of all its logits."""
    row = tl.program_id(0).to(tl.int64)
    part_keys += row * parts * count
    places = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    found = tl.load(part_keys + places, mask=places < parts * count, other=0)
    found = found.to(tl.uint32, bitcast=True)
    # Of equal logits the part's first comes first, and the earlier part.
    keys = tl.where(found > 0, (found & _VALUE) | (places.to(tl.uint32) ^ _LOW), 0)
    part = tl.arange(0, PARTS)
    inside = part < parts
    maxima = tl.load(part_maxima + row * parts + part, mask=inside, other=-float("inf"))
    sums = tl.load(part_sums + row * parts + part, mask=inside, other=0.0)
    maximum = tl.max(maxima)
    shift = tl.where(tl.abs(maximum) < float("inf"), maximum, 0.0)
    total = tl.sum(sums * tl.exp(maxima - shift))
    # NaN fails this comparison as well.
    fine = total > 0
    log_sum = tl.log(tl.where(fine, total, 1.0))
    impossible = tl.where(total == 0, -float("inf"), float("nan"))
    tl.store(lse + row, tl.where(fine, shift + log_sum, impossible))
    ranks = tl.arange(0, COUNT)
    chosen = tl.zeros([COUNT], tl.uint32)
    best = greatest(keys)
    for rank in range(count):
        chosen = tl.where(ranks == rank, best, chosen)
        best = next_key(keys, best)
    wanted = ranks < count
    place = ((chosen & _LOW) ^ _LOW).to(tl.int32)
    key = tl.load(part_keys + place, mask=wanted, other=0).to(tl.uint32, bitcast=True)
    token = place // count * PART + ((key & _LOW) ^ _LOW).to(tl.int32)
    logit = tl.load(logits + row * stride + token, mask=wanted, other=0.0).to(tl.float32)
    logit = tl.where(logit != logit, -float("inf"), logit)
    # From the maximum first: the difference to the log-sum-exp would cancel digits.
    log_prob = tl.where(fine, tl.minimum(logit - shift - log_sum, 0.0), float("nan"))
    tl.store(tokens + row * count + ranks, token, mask=wanted)
    tl.store(log_probs + row * count + ranks, log_prob, mask=wanted)
