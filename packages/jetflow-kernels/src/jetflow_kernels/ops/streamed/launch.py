"""Starts the product kernel of sm_90a on checked tensors; waits for nothing."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_kernels.attention.k2 import driver
from jetflow_kernels.ops.streamed.variants import (
    STEP,
    TYPES,
    Streamed,
    cubin,
    programs_for,
    variant_of,
)

_CAPABILITY = 9
_BYTES = 2
_BOX_ALIGNMENT = 16
"""Bytes that addresses and strides of what bulk copies read are multiples of."""
_TURN = 8
"""Rows of gates, and of what they gate, that take turns in a tile."""
_WRITTEN = 2
"""Columns of the result that are written at once."""


class ProductParams(ctypes.Structure):
    """``ProductParams`` of ``product.cuh``."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out_row", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
        ("tiles", ctypes.c_int32),
        ("steps", ctypes.c_int32),
        ("share_log", ctypes.c_int32),
    )


def launch_streamed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: Streamed,
    *,
    overlapped: bool,
    gated: bool,
) -> None:
    """Computes ``out`` on the current stream; can be captured in a CUDA graph.

    The first call in a process loads the kernel, and the first on a machine builds it; neither can
    be captured.

    Args:
        x: as in ``linear``, like the others.
        weight: see there.
        bias: see there.
        out: see there.
        config: see there.
        overlapped: see there.
        gated: whether the matrix is of two halves.

    Raises:
        ValueError: ``refused`` says why.
        BuildError: the kernel could not be built.
        DriverError: the CUDA driver refused.
    """
    reason = refused(x, weight, out, config, gated=gated)
    if reason is not None:
        raise ValueError(reason)
    if not len(x):
        return
    variant = variant_of(config, x.dtype, gated=gated)
    parameters = params_of(x, bias, out, config, gated=gated)
    maps = _map(weight, matrix_boxes(weight, config, gated=gated)), _map(x, rows_boxes(x, config))
    device = x.get_device()
    with torch.cuda.device(device):
        driver.use_device(device)
        kernel = driver.load(cubin(variant), variant.name, config.shared_bytes, device)
        kernel.launch(
            programs_for(config, parameters.tiles),
            config.threads,
            torch.cuda.current_stream(device).cuda_stream,
            (parameters, *maps),
            cluster=config.shares,
            early=overlapped,
        )


def refused(x: Tensor, weight: Tensor, out: Tensor, config: Streamed, *, gated: bool) -> str | None:
    """Why the kernel does not take a product that ``linear`` would; None: it does.

    Args:
        x: as in ``linear``, like the others.
        weight: see there.
        out: see there.
        config: see there.
        gated: whether the matrix is of two halves.
    """
    if not x.is_cuda or torch.cuda.get_device_capability(x.device)[0] != _CAPABILITY:
        return f"streams need a CUDA device of capability {_CAPABILITY}.x, x is on {x.device}"
    if x.dtype not in TYPES:
        return f"streams are of float16 or bfloat16, not {x.dtype}"
    if len(x) > config.rows:
        return f"the rows T of x must be in 0..{config.rows} for {config}, got {len(x)}"
    ins = x.shape[1]
    if config.shares > -(-ins // STEP):
        return f"{config} need at least {STEP * (config.shares - 1) + 1} columns of x, got {ins}"
    if gated and out.shape[1] % _TURN:
        return f"gated columns must be a multiple of {_TURN}, got {out.shape[1]}"
    read = {"x": (x.data_ptr(), _row(x)), "weight": (weight.data_ptr(), _row(weight))}
    for name, (address, stride) in read.items():
        if address % _BOX_ALIGNMENT or stride * _BYTES % _BOX_ALIGNMENT:
            return f"{name} must lie at multiples of {_BOX_ALIGNMENT} bytes, rows too"
    if any(number % _WRITTEN for number in (out.shape[1], _row(out), out.data_ptr() // _BYTES)):
        return f"out must have columns in groups of {_WRITTEN}, and rows that begin at such"
    return None


def params_of(
    x: Tensor, bias: Tensor | None, out: Tensor, config: Streamed, *, gated: bool
) -> ProductParams:
    """What the kernel is told beside its maps.

    Args:
        x: as in ``linear``, like the others.
        bias: see there.
        out: see there.
        config: see there.
        gated: whether the matrix is of two halves.
    """
    (rows, ins), outs = x.shape, out.shape[1]
    tiles = -(-outs // (config.columns // 2 if gated else config.columns))
    return ProductParams(
        out.data_ptr(), None if bias is None else bias.data_ptr(), _row(out),
        rows, outs, tiles, -(-ins // STEP), config.shares.bit_length() - 1,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Boxes:
    """How the copy engine finds boxes of a matrix: ``driver.tensor_map`` takes the same."""

    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int]
    """In bytes."""
    box: tuple[int, int, int, int]


def matrix_boxes(weight: Tensor, config: Streamed, *, gated: bool) -> Boxes:
    """A tile of the matrix is one box; where it is gated, eight rows of either half take turns.

    Args:
        weight: [out, in].
        config: how the product is cut.
        gated: whether it is of two halves.
    """
    outs, ins = weight.shape
    row = _row(weight) * _BYTES
    if not gated:
        return Boxes((ins, outs, 1, 1), (row, row * outs, row * outs), (STEP, config.columns, 1, 1))
    half = outs // 2
    sizes = (ins, _TURN, 2, half // _TURN)
    box = (STEP, _TURN, 2, config.columns // (2 * _TURN))
    return Boxes(sizes, (row, row * half, row * _TURN), box)


def rows_boxes(x: Tensor, config: Streamed) -> Boxes:
    """All rows of a tile are one box.

    Args:
        x: [T, in].
        config: how the product is cut.
    """
    rows, ins = x.shape
    row = _row(x) * _BYTES
    return Boxes((ins, rows, 1, 1), (row, row * rows, row * rows), (STEP, config.rows, 1, 1))


def _map(matrix: Tensor, boxes: Boxes) -> ctypes.Array[ctypes.c_char]:
    return driver.tensor_map(
        matrix.data_ptr(), TYPES[matrix.dtype][0], boxes.sizes, boxes.strides, boxes.box
    )


def _row(matrix: Tensor) -> int:
    """Elements from a row to the next; the stride of a single row means nothing."""
    return matrix.stride(0) if len(matrix) > 1 else matrix.shape[1]
