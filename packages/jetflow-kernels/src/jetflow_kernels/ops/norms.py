"""The norm of a decoder layer's rows, with the residual sum before it or without."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    LOGITS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    placed,
    power_of_two,
)

MOST_WIDTH = 16384
"""Columns of a row, which one program holds."""


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None, overlapped: bool = False
) -> Tensor:
    """Rows over their root mean square, in one launch.

    It rounds where transformers does: the row over its root mean square in float32, rounded to the
    type of ``x``; times the weight, rounded. A row's bits do not depend on the other rows.

    Args:
        x: [T, H] float32, bfloat16 or float16, H from 1 to 16384; any row stride.
        weight: [H] in the type of ``x``, contiguous.
        eps: what is added to the mean square, at least 0.
        out: [T, H] in the type of ``x``, any row stride, to be written instead of a new tensor.
            May be ``x``, exactly.
        overlapped: whether the kernel is placed while the one ahead on the stream ends, and waits
            for it by itself before it reads rows; nothing may just have written the weight. For
            capability 9.0 and later; of no effect in the interpreter. Changes no bits.

    Returns:
        [T, H].

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    result = _check(x, weight, eps, out)
    _launch(x, None, weight, eps, None, result, overlapped)
    return result


def rms_norm_reference(
    x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None, overlapped: bool = False
) -> Tensor:
    """What ``rms_norm`` returns, on any device, one operation at a time.

    Args:
        x: see there.
        weight: see there.
        eps: see there.
        out: see there.
        overlapped: of no effect.

    Returns:
        The normed rows.

    Raises:
        ValueError: as there, except that any device will do.
    """
    result = _check(x, weight, eps, out)
    wide = x.float()
    scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return result.copy_(weight * scaled.to(x.dtype))


def add_rms_norm(
    x: Tensor,
    change: Tensor,
    weight: Tensor,
    eps: float,
    total: Tensor,
    *,
    out: Tensor | None = None,
    overlapped: bool = False,
) -> Tensor:
    """``rms_norm`` of the sum of two tensors, which is kept as well, in one launch.

    Args:
        x: as in ``rms_norm``.
        change: [T, H] in the type of ``x``, any row stride.
        weight: as in ``rms_norm``.
        eps: as in ``rms_norm``.
        total: [T, H] in the type of ``x``, any row stride: the sum is written here, rounded, and
            the norm is that of the rounded sum. May be ``x`` or ``change``, exactly.
        out: as in ``rms_norm``; may be ``change``, exactly, if ``total`` is not.
        overlapped: as in ``rms_norm``.

    Returns:
        [T, H], the normed rows.

    Raises:
        ValueError: as in ``rms_norm``.
    """
    result = _check(x, weight, eps, out, change=change, total=total)
    _launch(x, change, weight, eps, total, result, overlapped)
    return result


def add_rms_norm_reference(
    x: Tensor,
    change: Tensor,
    weight: Tensor,
    eps: float,
    total: Tensor,
    *,
    out: Tensor | None = None,
    overlapped: bool = False,
) -> Tensor:
    """What ``add_rms_norm`` does, on any device, one operation at a time.

    Args:
        x: see there.
        change: see there.
        weight: see there.
        eps: see there.
        total: see there.
        out: see there.
        overlapped: of no effect.

    Returns:
        The normed rows.

    Raises:
        ValueError: as there, except that any device will do.
    """
    result = _check(x, weight, eps, out, change=change, total=total)
    total.copy_(x + change)
    return rms_norm_reference(total, weight, eps, out=result)


def warps_of(block: int, itemsize: int) -> int:
    """Warps of a program of ``block`` columns: a thread reads 16 bytes of each tensor at a time."""
    return max(1, min(16, block * itemsize // 16 // 32))


def _launch(
    x: Tensor,
    change: Tensor | None,
    weight: Tensor,
    eps: float,
    total: Tensor | None,
    out: Tensor,
    overlapped: bool,
) -> None:
    from jetflow_kernels.ops.norm_kernel import rms_norm_kernel

    rows, width = x.shape
    strides = [0 if each is None else each.stride(0) for each in (x, change, total, out)]
    block = power_of_two(width)
    with device_of(rms_norm_kernel, x):
        if rows == 0:
            return
        rms_norm_kernel[(rows,)](
            x, change, weight, total, out, *strides, width, eps,
            BLOCK=block, num_warps=warps_of(block, x.element_size()),
            **placed(overlapped and x.is_cuda),
        )  # fmt: skip


def _check(x: Tensor, weight: Tensor, eps: float, out: Tensor | None, **beside: Tensor) -> Tensor:
    device, dtype = x.device, x.dtype
    expect("x", x, (-1, -1), LOGITS, device)
    rows, width = x.shape
    expect_range("the width H of x", width, 1, MOST_WIDTH)
    expect("weight", weight, (width,), (dtype,), device)
    expect_contiguous("weight", weight)
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}")
    result = torch.empty(rows, width, dtype=dtype, device=device) if out is None else out
    for name, tensor in {"x": x, **beside, "out": result}.items():
        expect(name, tensor, (rows, width), (dtype,), device)
        if width > 1 and tensor.stride(1) != 1:
            raise ValueError(f"{name} must have no gaps in a row, got strides {tensor.stride()}")
    return result
