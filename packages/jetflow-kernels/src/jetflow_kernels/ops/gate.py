"""The gate of an MLP: SiLU of one half of each row times the other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from jetflow_kernels.round.checks import LOGITS, device_of, expect, placed, power_of_two

PART = 2048
"""Columns of one program: 6 programs a row of 12,288."""


def silu_mul(gate_up: Tensor, *, out: Tensor | None = None, overlapped: bool = False) -> Tensor:
    """SiLU of the first half of each row times the second half, in one launch.

    Rounded as torch rounds two operations: the SiLU, computed in float32, and the product.

    Args:
        gate_up: [N, 2 I] float32, bfloat16 or float16, I at least 1; any row stride.
        out: [N, I] in the type of ``gate_up``, any row stride, to be written instead of a new
            tensor. May be the first or the second half of ``gate_up``, exactly.
        overlapped: as in ``rms_norm``.

    Returns:
        [N, I].

    Raises:
        ValueError: a shape, type or device is not as said, or it is not a CUDA device.
    """
    result = _check(gate_up, out)
    from jetflow_kernels.ops.gate_kernel import silu_mul_kernel

    rows, width = result.shape
    part = power_of_two(min(width, PART))
    with device_of(silu_mul_kernel, gate_up):
        if rows:
            silu_mul_kernel[(rows, -(-width // part))](
                gate_up, result, gate_up.stride(0), result.stride(0), width,
                PART=part, num_warps=warps_of(part, gate_up.element_size()),
                **placed(overlapped and gate_up.is_cuda),
            )  # fmt: skip
    return result


def silu_mul_reference(
    gate_up: Tensor, *, out: Tensor | None = None, overlapped: bool = False
) -> Tensor:
    """What ``silu_mul`` returns, on any device, one operation at a time.

    Args:
        gate_up: see there.
        out: see there.
        overlapped: of no effect.

    Returns:
        The gated rows.

    Raises:
        ValueError: as there, except that any device will do.
    """
    result = _check(gate_up, out)
    gate, up = gate_up.chunk(2, dim=1)
    return result.copy_(F.silu(gate) * up)


def warps_of(part: int, itemsize: int) -> int:
    """Warps of a program of ``part`` columns: a thread reads 16 bytes of each half at a time."""
    return max(1, min(8, part * itemsize // 16 // 32))


def _check(gate_up: Tensor, out: Tensor | None) -> Tensor:
    device, dtype = gate_up.device, gate_up.dtype
    expect("gate_up", gate_up, (-1, -1), LOGITS, device)
    rows, both = gate_up.shape
    width, rest = divmod(both, 2)
    if rest or not width:
        raise ValueError(f"gate_up must have an even number of columns, at least 2, got {both}")
    result = torch.empty(rows, width, dtype=dtype, device=device) if out is None else out
    expect("out", result, (rows, width), (dtype,), device)
    for name, tensor in (("gate_up", gate_up), ("out", result)):
        if tensor.shape[1] > 1 and tensor.stride(1) != 1:
            raise ValueError(f"{name} must have no gaps in a row, got strides {tensor.stride()}")
    return result
