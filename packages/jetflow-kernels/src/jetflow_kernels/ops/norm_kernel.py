"""Triton: one row, after the residual sum or without one, over its root mean square."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rms_norm_kernel(
    x: tl.tensor,
    change: tl.tensor,
    weight: tl.tensor,
    total: tl.tensor,
    out: tl.tensor,
    x_stride: tl.tensor,
    change_stride: tl.tensor,
    total_stride: tl.tensor,
    out_stride: tl.tensor,
    width: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
    OVERLAPPED: tl.constexpr,
) -> None:
    """One row; ``total`` is there if ``change`` is, and the norm is then that of the rounded sum.

    A program reads its row before it writes it: ``total`` and ``out`` may be what is read.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    kind = out.dtype.element_ty
    scale_of = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if OVERLAPPED:
        # The next kernel may be placed; it waits before it reads results. So does this one.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    values = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    if change is not None:
        added = tl.load(change + row * change_stride + column, mask=inside, other=0.0)
        summed = (values + added.to(tl.float32)).to(kind)
        tl.store(total + row * total_stride + column, summed, mask=inside)
        values = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + eps)
    normed = (values * scale).to(kind).to(tl.float32)
    tl.store(out + row * out_stride + column, (normed * scale_of).to(kind), mask=inside)
