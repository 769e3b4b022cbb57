"""The target's greedy pick after every row."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    INTEGERS,
    LOGITS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    power_of_two,
)
from jetflow_kernels.round.topk import (
    MOST_VOCABULARY,
    NARROW_PART,
    lines_of,
    split_vocabulary,
    warps_of,
)


def pick_argmax(
    logits: Tensor, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """The token of the greatest logit of every row, in one pass over the logits.

    Args:
        logits: [N, V] float32, bfloat16 or float16, the last axis without gaps.
        out: the two results, to be written instead of new tensors; picks may also be int64.

    Returns:
        picks: [N] int32, the smallest token among equal logits. NaN counts as -inf.
        broken: [N] bool, whether a logit of the row is NaN.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    picks, broken = _check(logits, out)
    if logits.shape[0]:
        _pick_argmax(logits, picks, broken)
    return picks, broken


def pick_argmax_reference(
    logits: Tensor, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """What ``pick_argmax`` returns, on any device.

    Args:
        logits: see there.
        out: see there.

    Returns:
        The picks and whether each row is broken.

    Raises:
        ValueError: as there, except that any device will do.
    """
    picks, broken = _check(logits, out)
    nan = logits.isnan()
    values = logits.float().masked_fill(nan, -torch.inf)
    greatest = values == values.amax(1, keepdim=True)
    # The first of equal maxima: argmax of torch promises none.
    tokens = torch.arange(logits.shape[1], device=logits.device)
    picks.copy_(torch.where(greatest, tokens, logits.shape[1]).amin(1))
    broken.copy_(nan.any(1))
    return picks, broken


@torch.library.custom_op("jetflow_kernels::pick_argmax", mutates_args=("picks", "broken"))
def _pick_argmax(logits: Tensor, picks: Tensor, broken: Tensor) -> None:
    pick = _pick_wide if logits.dtype == torch.float32 else _pick_narrow
    pick(logits, picks, broken)


def _pick_wide(logits: Tensor, picks: Tensor, broken: Tensor) -> None:
    """With keys of 64 bits: a logit of 32 above its token."""
    from jetflow_kernels.round.vocabulary_kernel import argmax_merge_kernel, argmax_part_kernel

    rows, vocabulary = logits.shape
    part, parts = split_vocabulary(vocabulary, 1)
    device = logits.device
    with device_of(argmax_part_kernel, logits):
        keys = torch.empty(rows, parts, dtype=torch.int64, device=device)
        flags = torch.empty(rows, parts, dtype=torch.int32, device=device)
        argmax_part_kernel[(rows, parts)](
            logits, keys, flags, logits.stride(0), vocabulary, parts, PART=part, num_warps=4
        )
        argmax_merge_kernel[(rows,)](
            keys, flags, picks, broken, parts, PARTS=power_of_two(parts), num_warps=1
        )


def _pick_narrow(logits: Tensor, picks: Tensor, broken: Tensor) -> None:
    """With keys of 32 bits: a logit of 16 above its place, one warp a part."""
    from jetflow_kernels.round.topk_kernel import (
        narrow_argmax_merge_kernel,
        narrow_argmax_part_kernel,
    )

    rows, vocabulary = logits.shape
    part, parts = split_vocabulary(vocabulary, 1, NARROW_PART)
    device = logits.device
    with device_of(narrow_argmax_part_kernel, logits):
        keys = torch.empty(rows, parts, dtype=torch.int32, device=device)
        flags = torch.empty(rows, parts, dtype=torch.int32, device=device)
        narrow_argmax_part_kernel[(rows, parts)](
            logits, keys, flags, logits.stride(0), vocabulary, parts,
            **lines_of(part), num_warps=warps_of(part),
        )  # fmt: skip
        narrow_argmax_merge_kernel[(rows,)](
            keys, flags, picks, broken, parts,
            PART=part, PARTS=power_of_two(parts), num_warps=1,
        )  # fmt: skip


@_pick_argmax.register_fake
def _(logits: Tensor, picks: Tensor, broken: Tensor) -> None:
    """The results are written in place; nothing is made."""


def _check(logits: Tensor, out: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    device = logits.device
    expect("logits", logits, (-1, -1), LOGITS, device)
    rows, vocabulary = logits.shape
    expect_range("the vocabulary V of logits", vocabulary, 1, MOST_VOCABULARY)
    if logits.stride(1) != 1:
        raise ValueError(f"logits must have no gaps in a row, got strides {logits.stride()}")
    if out is None:
        picks = torch.empty(rows, dtype=torch.int32, device=device)
        return picks, torch.empty(rows, dtype=torch.bool, device=device)
    for name, tensor, types in (("out[0]", out[0], INTEGERS), ("out[1]", out[1], (torch.bool,))):
        expect(name, tensor, (rows,), types, device)
        expect_contiguous(name, tensor)
    return out
