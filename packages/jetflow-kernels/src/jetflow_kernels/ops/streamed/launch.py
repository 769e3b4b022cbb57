"""Starts the product kernel of sm_90a on checked tensors; waits for nothing."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from jetflow_kernels.attention.k2 import driver
from jetflow_kernels.ops.streamed.variants import (
    COLUMNS,
    STEP,
    THREADS,
    TYPES,
    Streamed,
    Variant,
    cubin,
)

_BYTES = 2
_BOX_ALIGNMENT = 16
"""Bytes that addresses and strides of what bulk copies read are multiples of."""
_GROUP = 64
"""Rows of the matrix that one copy brings."""
_WRITTEN = 4
"""Columns of the result that are written at once."""


class ProductParams(ctypes.Structure):
    """``ProductParams`` of ``product.cuh``."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out_row", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
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
    reason = refused(x, weight, bias, out, config)
    if reason is not None:
        raise ValueError(reason)
    if not len(x):
        return
    variant = Variant(dtype=x.dtype, rows=config.rows, gated=gated)
    parameters = params_of(x, bias, out, config)
    columns = COLUMNS // 2 if gated else COLUMNS
    tiles = -(-out.shape[1] // columns)
    device = x.get_device()
    with torch.cuda.device(device):
        driver.use_device(device)
        kernel = driver.load(cubin(variant), variant.name, variant.shared_bytes, device)
        kernel.launch(
            tiles * config.shares,
            THREADS,
            torch.cuda.current_stream(device).cuda_stream,
            (parameters, _map(weight, _GROUP), _map(x, config.rows)),
            cluster=config.shares,
            early=overlapped,
        )


def refused(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, config: Streamed
) -> str | None:
    """Why the kernel does not take a product that ``linear`` would; None: it does.

    Args:
        x: as in ``linear``, like the others.
        weight: see there.
        bias: see there.
        out: see there.
        config: see there.
    """
    if x.dtype not in TYPES:
        return f"streams are of float16 or bfloat16, not {x.dtype}"
    if len(x) > config.rows:
        return f"the rows T of x must be in 0..{config.rows} for {config}, got {len(x)}"
    ins = x.shape[1]
    if config.shares > -(-ins // STEP):
        return f"{config} need at least {STEP * (config.shares - 1) + 1} columns of x, got {ins}"
    read = {"x": (x.data_ptr(), _row(x)), "weight": (weight.data_ptr(), _row(weight))}
    for name, (address, stride) in read.items():
        if address % _BOX_ALIGNMENT or stride * _BYTES % _BOX_ALIGNMENT:
            return f"{name} must lie at multiples of {_BOX_ALIGNMENT} bytes, rows too"
    written = [out.shape[1], _row(out), out.data_ptr() // _BYTES]
    if bias is not None:
        written.append(bias.data_ptr() // _BYTES)
    if any(number % _WRITTEN for number in written):
        return f"out and bias must be of {_WRITTEN} columns at a time, and lie so"
    return None


def params_of(x: Tensor, bias: Tensor | None, out: Tensor, config: Streamed) -> ProductParams:
    """What the kernel is told beside its maps.

    Args:
        x: as in ``linear``, like the others.
        bias: see there.
        out: see there.
        config: see there.
    """
    rows, ins = x.shape
    return ProductParams(
        out.data_ptr(), None if bias is None else bias.data_ptr(), _row(out),
        rows, out.shape[1], -(-ins // STEP), config.shares.bit_length() - 1,
    )  # fmt: skip


def _row(matrix: Tensor) -> int:
    """Elements from a row to the next; the stride of a single row means nothing."""
    return matrix.stride(0) if len(matrix) > 1 else matrix.shape[1]


def _map(matrix: Tensor, box: int) -> ctypes.Array[ctypes.c_char]:
    """Rows of a matrix for the copy engine, with two axes of one, as its boxes have four."""
    rows, columns = matrix.shape
    stride = _row(matrix) * _BYTES
    strides = (stride, stride * rows, stride * rows)
    sizes = (columns, rows, 1, 1)
    return driver.tensor_map(
        matrix.data_ptr(), TYPES[matrix.dtype][0], sizes, strides, (STEP, box, 1, 1)
    )
