"""Starts the kernels of products on checked tensors; waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.ops.linear_plan import Few, Shares, programs_in, tiles_in
from jetflow_kernels.round.checks import device_of, placed, power_of_two

_ALIGNMENT = 16
"""Bytes that addresses and strides of boxes are multiples of."""


def launch_few(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: Few,
    *,
    overlapped: bool,
    gated: bool,
    compile_only: bool = False,
) -> None:
    """Computes ``out`` on the current stream; can be captured in a CUDA graph.

    Args:
        x: as in ``linear``, like the others.
        weight: see there.
        bias: see there.
        out: see there.
        config: see there.
        overlapped: see there.
        gated: whether the matrix is of two halves.
        compile_only: whether the kernel is compiled for such arguments instead.
    """
    from jetflow_kernels.ops.linear_few_kernel import linear_few_kernel as kernel

    rows, outs = out.shape
    interpreted = _interpreted(kernel)
    with device_of(kernel, x):
        if rows == 0:
            return
        _started(kernel, (-(-outs // config.columns),), compile_only)(
            x=x, weight=weight, bias=bias, y=out, x_stride=x.stride(0), y_stride=out.stride(0),
            rows=rows, outs=outs, ins=x.shape[1], ROWS=power_of_two(rows),
            BLOCK_M=config.columns, BLOCK_K=config.depth, GATED=gated,
            num_warps=config.warps, **placed(overlapped and not interpreted),
        )  # fmt: skip


def launch_shares(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: Shares,
    arrived: Tensor | None,
    *,
    overlapped: bool,
    gated: bool,
    compile_only: bool = False,
) -> None:
    """Computes ``out`` on the current stream; can be captured in a CUDA graph.

    Args:
        x: as in ``linear``, like the others.
        weight: see there.
        bias: see there.
        out: see there.
        config: see there.
        arrived: see there.
        overlapped: see there.
        gated: whether the matrix is of two halves.
        compile_only: whether the kernel is compiled for such arguments instead.
    """
    from jetflow_kernels.ops.linear_kernel import linear_kernel as kernel

    (rows, outs), ins = out.shape, x.shape[1]
    interpreted = _interpreted(kernel)
    with device_of(kernel, x):
        if rows == 0:
            return
        boxes = _boxes(x, weight, config)
        programs = programs_in(config, rows, outs, ins)
        parts, arrived = _together(x, config, arrived, programs, rows, outs, gated=gated)
        asks = boxes is not None and not interpreted and config.ahead * config.depth <= ins
        _started(kernel, (programs,), compile_only)(
            *((None, None) if boxes is None else boxes),
            x=x, weight=weight, bias=bias, y=out, partial=parts, arrived=arrived,
            x_stride=x.stride(0), y_stride=out.stride(0), rows=rows, outs=outs, ins=ins,
            BLOCK_M=config.columns, BLOCK_N=config.rows, BLOCK_K=config.depth,
            STAGES=config.stages, AHEAD=config.ahead if asks else 0, WIDTH=x.element_size(),
            GATED=gated, BOXED=boxes is not None,
            WIDEN=interpreted and x.dtype == torch.bfloat16,
            num_warps=config.warps, num_stages=config.stages,
            **placed(overlapped and not interpreted),
        )  # fmt: skip


def _together(
    x: Tensor,
    config: Shares,
    arrived: Tensor | None,
    programs: int,
    rows: int,
    outs: int,
    *,
    gated: bool,
) -> tuple[Tensor, Tensor]:
    """Room for what programs have of a tile, and their counters; nothing where tiles are whole."""
    tiles = tiles_in(config, rows, outs)
    whole = programs == tiles
    size = 0 if whole else 2 * programs * (2 if gated else 1) * config.columns * config.rows
    partial = torch.empty(size, dtype=torch.float32, device=x.device)
    if arrived is None:
        made = torch.empty if whole else torch.zeros
        arrived = made(tiles, dtype=torch.int32, device=x.device)
    return partial, arrived


def _boxes(x: Tensor, weight: Tensor, config: Shares) -> tuple[Any, Any] | None:
    """Both matrices as bulk copies see them, or None where those cannot be made."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    rows, ins = x.shape
    # The stride of a single row means nothing.
    stride = x.stride(0) if rows > 1 else ins
    width = x.element_size()
    places = (x.data_ptr(), weight.data_ptr(), stride * width, ins * width)
    if x.dtype == torch.float32 or any(place % _ALIGNMENT for place in places):
        return None
    if x.is_cuda and torch.cuda.get_device_capability(x.device)[0] < 9:
        return None
    return (
        TensorDescriptor(weight, [weight.shape[0], ins], [ins, 1], [config.columns, config.depth]),
        TensorDescriptor(x, [rows, ins], [stride, 1], [config.rows, config.depth]),
    )


def _started(kernel: Any, grid: tuple[int], compile_only: bool) -> Callable[..., Any]:
    return partial(kernel.warmup, grid=grid) if compile_only else kernel[grid]


def _interpreted(kernel: Any) -> bool:
    """Whether Triton was imported to interpret its kernels, which then run on CPU tensors."""
    return not hasattr(kernel, "device_caches")
