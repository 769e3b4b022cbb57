"""Triton: the greatest of 16-bit logits, one or several, in keys of 32 bits.

In a part of a row a key is the logit's bits, ordered like the floats, above the token counted
downwards; where parts are merged, above the place among what the parts found, downwards. Keys are
distinct, so the one that follows a key is the greatest of their differences to it, wrapped around:
nothing has to be taken out.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Below every key: no token.
_NOTHING = tl.constexpr(-2147483648)
_MAGNITUDE = tl.constexpr(0x7FFF0000)
# Of float32: all bits but the sign, those of infinity.
_UNSIGNED = tl.constexpr(0x7FFFFFFF)
_INFINITE = tl.constexpr(0x7F800000)
_VALUE = tl.constexpr(-65536)
_LOW = tl.constexpr(0xFFFF)
_LAST_TOKEN = tl.constexpr(2147483647)


@triton.jit
def keys_of_16_bits(values: tl.tensor, places: tl.tensor, KIND: tl.constexpr) -> tl.tensor:
    """The int32 keys of logits without NaN that type ``KIND`` can hold; -0.0 counts as 0.0."""
    # Adding 0 turns -0.0 into 0.0 and changes nothing else.
    values += 0.0
    if KIND == tl.bfloat16:
        bits = values.to(tl.int32, bitcast=True)
    else:
        bits = values.to(KIND).to(tl.int16, bitcast=True).to(tl.int32) << 16
    # The bits of negative numbers run backwards.
    return (bits ^ ((bits >> 31) & _MAGNITUDE)) | (places ^ _LOW)


@triton.jit
def greatest(keys: tl.tensor) -> tl.tensor:
    """The greatest of [A, B] keys, by columns first: short chains of instructions."""
    return tl.max(tl.max(keys, axis=0), axis=0)


@triton.jit
def next_key(keys: tl.tensor, best: tl.tensor) -> tl.tensor:
    """The greatest of the [A, B] keys below ``best``, where there is one."""
    following = greatest((keys - best).to(tl.uint32, bitcast=True))
    return best + following.to(tl.int32, bitcast=True)


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
        tl.store(part_keys + place * count + rank, best)
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
    found = tl.load(part_keys + places, mask=places < parts * count, other=_NOTHING)
    # Of equal logits the part's first comes first, and the earlier part.
    keys = tl.where(found > _NOTHING, (found & _VALUE) | (places ^ _LOW), _NOTHING)
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
    chosen = tl.zeros([COUNT], tl.int32)
    best = greatest(keys)
    for rank in range(count):
        chosen = tl.where(ranks == rank, best, chosen)
        best = next_key(keys, best)
    wanted = ranks < count
    place = (chosen & _LOW) ^ _LOW
    key = tl.load(part_keys + place, mask=wanted, other=0)
    token = place // count * PART + ((key & _LOW) ^ _LOW)
    logit = tl.load(logits + row * stride + token, mask=wanted, other=0.0).to(tl.float32)
    logit = tl.where(logit != logit, -float("inf"), logit)
    # From the maximum first: the difference to the log-sum-exp would cancel digits.
    log_prob = tl.where(fine, tl.minimum(logit - shift - log_sum, 0.0), float("nan"))
    tl.store(tokens + row * count + ranks, token, mask=wanted)
    tl.store(log_probs + row * count + ranks, log_prob, mask=wanted)


@triton.jit(do_not_specialize=["parts"])
def narrow_argmax_part_kernel(
    logits: tl.tensor,
    part_keys: tl.tensor,
    part_broken: tl.tensor,
    stride: tl.tensor,
    vocabulary: tl.tensor,
    parts: tl.tensor,
    LINES: tl.constexpr,
    LINE: tl.constexpr,
) -> None:
    """The greatest key of one part of one row, and whether a logit there is NaN."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, LINES)[:, None] * LINE + tl.arange(0, LINE)[None, :]
    tokens = tl.program_id(1) * (LINES * LINE) + places
    values = tl.load(
        logits + row * stride + tokens, mask=tokens < vocabulary, other=-float("inf")
    ).to(tl.float32)
    broken = greatest(values.to(tl.int32, bitcast=True) & _UNSIGNED) > _INFINITE
    if broken:
        values = tl.where(values == values, values, -float("inf"))
    best = greatest(keys_of_16_bits(values, places, logits.dtype.element_ty))
    place = row * parts + tl.program_id(1)
    tl.store(part_keys + place, best)
    tl.store(part_broken + place, broken.to(tl.int32))


@triton.jit(do_not_specialize=["parts"])
def narrow_argmax_merge_kernel(
    part_keys: tl.tensor,
    part_broken: tl.tensor,
    picks: tl.tensor,
    broken: tl.tensor,
    parts: tl.tensor,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """The pick of one row, and whether one of its logits is NaN."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    inside = part < parts
    found = tl.load(part_keys + row * parts + part, mask=inside, other=0)
    flags = tl.load(part_broken + row * parts + part, mask=inside, other=0)
    value = tl.where(inside, found & _VALUE, _NOTHING)
    first = inside & (value == tl.max(value))
    token = part * PART + ((found & _LOW) ^ _LOW)
    tl.store(picks + row, tl.min(tl.where(first, token, _LAST_TOKEN)))
    tl.store(broken + row, tl.max(flags) > 0)
