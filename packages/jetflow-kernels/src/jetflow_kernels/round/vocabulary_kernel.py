"""Triton: one pass over the logits, split over the vocabulary, and the merge of its parts.

A logit and its token make one 64-bit key: the logit's bits, ordered like the floats, above the
token counted downwards. The greatest key is the greatest logit, the smallest token on ties, and
keys are distinct, so removing the one just found leaves the others alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Below every key: no token.
_NOTHING = tl.constexpr(-9223372036854775808)
_SIGN = tl.constexpr(2147483647)


@triton.jit
def keys_of(values: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """The int64 keys of float32 logits without NaN; -0.0 counts as 0.0."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ _SIGN, bits)
    return (ordered.to(tl.int64) << 32) | (tokens ^ _SIGN).to(tl.int64)


@triton.jit
def token_of(key: tl.tensor) -> tl.tensor:
    """The token of a key, int32."""
    return (key & 0xFFFFFFFF).to(tl.int32) ^ _SIGN


@triton.jit
def logit_of(key: tl.tensor) -> tl.tensor:
    """The logit of a key, float32."""
    ordered = (key >> 32).to(tl.int32)
    return tl.where(ordered < 0, ordered ^ _SIGN, ordered).to(tl.float32, bitcast=True)


@triton.jit
def load_part(
    logits: tl.tensor, stride: tl.tensor, vocabulary: tl.tensor, PART: tl.constexpr
) -> tl.tensor:
    """This program's part of its row: float32 logits, tokens, which exist, whether one is NaN.

    NaN counts as -inf.
    """
    tokens = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = tokens < vocabulary
    row = logits + tl.program_id(0).to(tl.int64) * stride
    values = tl.load(row + tokens, mask=inside, other=-float("inf")).to(tl.float32)
    broken = values != values
    values = tl.where(broken, -float("inf"), values)
    return values, tokens, inside, tl.max(broken.to(tl.int32))


@triton.jit(do_not_specialize=["parts", "count"])
def topk_part_kernel(
    logits: tl.tensor,
    part_keys: tl.tensor,
    part_maxima: tl.tensor,
    part_sums: tl.tensor,
    stride: tl.tensor,
    vocabulary: tl.tensor,
    parts: tl.tensor,
    count: tl.tensor,
    PART: tl.constexpr,
) -> None:
    """The ``count`` greatest keys of one part of one row, its maximum, its sum of exponentials."""
    values, tokens, inside, broken = load_part(logits, stride, vocabulary, PART)
    keys = tl.where(inside, keys_of(values, tokens), _NOTHING)
    place = tl.program_id(0).to(tl.int64) * parts + tl.program_id(1)
    maximum = tl.max(values)
    shift = tl.where(tl.abs(maximum) < float("inf"), maximum, 0.0)
    total = tl.sum(tl.exp(values - shift))
    tl.store(part_maxima + place, maximum)
    # Infinite logits are as little a distribution as NaN, and make the row's sum NaN too.
    wrong = (broken > 0) | (maximum == float("inf"))
    tl.store(part_sums + place, tl.where(wrong, float("nan"), total))
    for rank in range(count):
        best = tl.max(keys)
        tl.store(part_keys + place * count + rank, best)
        keys = tl.where(keys == best, _NOTHING, keys)


@triton.jit(do_not_specialize=["parts", "count"])
def topk_merge_kernel(
    part_keys: tl.tensor,
    part_maxima: tl.tensor,
    part_sums: tl.tensor,
    tokens: tl.tensor,
    log_probs: tl.tensor,
    lse: tl.tensor,
    parts: tl.tensor,
    count: tl.tensor,
    PARTS: tl.constexpr,
    KEYS: tl.constexpr,
) -> None:
    """The ``count`` greatest keys of one row and the log-sum-exp of all its logits."""
    row = tl.program_id(0).to(tl.int64)
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
    place = tl.arange(0, KEYS)
    keys = tl.load(
        part_keys + row * parts * count + place, mask=place < parts * count, other=_NOTHING
    )
    for rank in range(count):
        best = tl.max(keys)
        # From the maximum first: the difference to the log-sum-exp would cancel digits.
        log_prob = tl.minimum(logit_of(best) - shift - log_sum, 0.0)
        tl.store(tokens + row * count + rank, token_of(best))
        tl.store(log_probs + row * count + rank, tl.where(fine, log_prob, float("nan")))
        keys = tl.where(keys == best, _NOTHING, keys)


@triton.jit(do_not_specialize=["parts"])
def argmax_part_kernel(
    logits: tl.tensor,
    part_keys: tl.tensor,
    part_broken: tl.tensor,
    stride: tl.tensor,
    vocabulary: tl.tensor,
    parts: tl.tensor,
    PART: tl.constexpr,
) -> None:
    """The greatest key of one part of one row, and whether a logit there is NaN."""
    values, tokens, inside, broken = load_part(logits, stride, vocabulary, PART)
    best = tl.max(values)
    token = tl.min(tl.where(inside & (values == best), tokens, _SIGN))
    place = tl.program_id(0).to(tl.int64) * parts + tl.program_id(1)
    tl.store(part_keys + place, keys_of(best, token))
    tl.store(part_broken + place, broken)


@triton.jit(do_not_specialize=["parts"])
def argmax_merge_kernel(
    part_keys: tl.tensor,
    part_broken: tl.tensor,
    picks: tl.tensor,
    broken: tl.tensor,
    parts: tl.tensor,
    PARTS: tl.constexpr,
) -> None:
    """The pick of one row, and whether one of its logits is NaN."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    inside = part < parts
    keys = tl.load(part_keys + row * parts + part, mask=inside, other=_NOTHING)
    flags = tl.load(part_broken + row * parts + part, mask=inside, other=0)
    tl.store(picks + row, token_of(tl.max(keys)))
    tl.store(broken + row, tl.max(flags) > 0)
