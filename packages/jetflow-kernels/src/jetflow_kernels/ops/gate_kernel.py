"""Triton: some columns of one row of gates through SiLU, times what they gate."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def silu_mul_kernel(
    gate_up: tl.tensor,
    out: tl.tensor,
    stride: tl.tensor,
    out_stride: tl.tensor,
    width: tl.tensor,
    PART: tl.constexpr,
    OVERLAPPED: tl.constexpr,
) -> None:
    """One part of one row, read before it is written."""
    if OVERLAPPED:
        # The next kernel may be placed; it waits before it reads results. So does this one.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * PART + tl.arange(0, PART)
    inside = column < width
    kind = out.dtype.element_ty
    source = gate_up + row * stride + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + width, mask=inside, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
    tl.store(out + row * out_stride + column, (silu * up).to(kind), mask=inside)
