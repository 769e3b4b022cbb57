"""Products of few rows with a matrix that is read from memory once, plain and gated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from jetflow_kernels.ops.gate import silu_mul_reference
from jetflow_kernels.ops.linear_plan import (
    FEW_ROWS,
    LEAST_COLUMNS,
    LEAST_ROWS,
    MOST_ROWS,
    Config,
    Few,
    Shares,
    configs_for,
)
from jetflow_kernels.ops.streamed.variants import Streamed
from jetflow_kernels.round.checks import LOGITS, expect, expect_contiguous, expect_range


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    arrived: Tensor | None = None,
    overlapped: bool = False,
) -> Tensor:
    """Rows times a matrix, in one launch, accumulated in float32 and rounded once.

    Float32 is multiplied exactly, never by tf32. A row's bits depend on the shapes and the
    configuration, on no other row and no run.

    Args:
        x: [T, in] float32, bfloat16 or float16, T from 0 to 256; any row stride.
        weight: [out, in] in the type of ``x``, contiguous.
        bias: [out] in the type of ``x``, contiguous.
        out: [T, out] in the type of ``x``, any row stride, to be written instead of a new tensor.
        config: how it is cut; None: the first of ``configs_for``. Those of ``streamed_for`` need
            nvcc once, and rows that copies can read: 16 bytes at a time.
        arrived: int32, zero, at least as many as ``room_for`` says: programs count each other in it
            and leave it zero, so that it serves the next product. No two products may use it at
            once. None: one is made, by a launch more.
        overlapped: whether the kernel is placed while the one ahead on the stream ends, reads the
            matrix at once and waits before it reads rows; so nothing may just have written the
            matrix. For capability 9.0 and later; of no effect in the interpreter. Changes no bits.

    Returns:
        [T, out].

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    result = _check(x, weight, bias, out, config, arrived, gated=False)
    return _run(x, weight, bias, result, config, arrived, overlapped, gated=False)


def linear_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    arrived: Tensor | None = None,
    overlapped: bool = False,
) -> Tensor:
    """What ``linear`` returns, on any device, accumulated in float64.

    Args:
        x: see there.
        weight: see there.
        bias: see there.
        out: see there.
        config: checked and not used, like what follows.
        arrived: see there.
        overlapped: see there.

    Returns:
        The products.

    Raises:
        ValueError: as there, except that any device will do.
    """
    result = _check(x, weight, bias, out, config, arrived, gated=False)
    exact = x.double() @ weight.double().T
    return result.copy_(exact if bias is None else exact + bias.double())


def gate_up_silu(
    x: Tensor,
    weight: Tensor,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    arrived: Tensor | None = None,
    overlapped: bool = False,
) -> Tensor:
    """SiLU of rows times the first half of a matrix, times rows times the second, in one launch.

    Rounded where ``linear`` and ``silu_mul`` round: both products, the SiLU, and what comes of it.

    Args:
        x: as in ``linear``.
        weight: [2 I, in] in the type of ``x``, contiguous, the gate's rows first.
        out: [T, I] in the type of ``x``, any row stride, to be written instead of a new tensor.
        config: as in ``linear``, of the gated ones.
        arrived: as in ``linear``.
        overlapped: as in ``linear``.

    Returns:
        [T, I].

    Raises:
        ValueError: as in ``linear``, or ``weight`` has an odd number of rows.
    """
    result = _check(x, weight, None, out, config, arrived, gated=True)
    return _run(x, weight, None, result, config, arrived, overlapped, gated=True)


def gate_up_silu_reference(
    x: Tensor,
    weight: Tensor,
    *,
    out: Tensor | None = None,
    config: Config | None = None,
    arrived: Tensor | None = None,
    overlapped: bool = False,
) -> Tensor:
    """What ``gate_up_silu`` returns, on any device: the references of its two operations.

    Args:
        x: see there.
        weight: see there.
        out: see there.
        config: checked and not used, like what follows.
        arrived: see there.
        overlapped: see there.

    Returns:
        The gated rows.

    Raises:
        ValueError: as there, except that any device will do.
    """
    result = _check(x, weight, None, out, config, arrived, gated=True)
    return silu_mul_reference(linear_reference(x, weight), out=result)


def room_for(shapes: Sequence[tuple[int, int]]) -> int:
    """Numbers that ``arrived`` needs for products of these (T, columns of the result)."""
    tiles = (-(-outs // LEAST_COLUMNS) * -(-rows // LEAST_ROWS) for rows, outs in shapes)
    return max(tiles, default=1)


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    config: Config | None,
    arrived: Tensor | None,
    overlapped: bool,
    *,
    gated: bool,
) -> Tensor:
    from jetflow_kernels.ops.linear_launch import launch_few, launch_shares
    from jetflow_kernels.ops.streamed.launch import launch_streamed

    config = config or configs_for(max(x.shape[0], 1), x.dtype, gated=gated)[0]
    if isinstance(config, Streamed):
        launch_streamed(x, weight, bias, out, config, overlapped=overlapped, gated=gated)
    elif isinstance(config, Few):
        launch_few(x, weight, bias, out, config, overlapped=overlapped, gated=gated)
    else:
        launch_shares(x, weight, bias, out, config, arrived, overlapped=overlapped, gated=gated)
    return out


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor | None,
    config: Config | None,
    arrived: Tensor | None,
    *,
    gated: bool,
) -> Tensor:
    device, dtype = x.device, x.dtype
    expect("x", x, (-1, -1), LOGITS, device)
    rows, ins = x.shape
    expect_range("the rows T of x", rows, 0, MOST_ROWS)
    if ins < 1:
        raise ValueError("x must have at least 1 column, got 0")
    expect("weight", weight, (-1, ins), (dtype,), device)
    expect_contiguous("weight", weight)
    outs, rest = divmod(weight.shape[0], 2) if gated else (weight.shape[0], 0)
    if rest or not outs:
        even = "an even number of rows, at least 2" if gated else "at least 1 row"
        raise ValueError(f"weight must have {even}, got {weight.shape[0]}")
    if bias is not None:
        expect("bias", bias, (outs,), (dtype,), device)
        expect_contiguous("bias", bias)
    result = torch.empty(rows, outs, dtype=dtype, device=device) if out is None else out
    expect("out", result, (rows, outs), (dtype,), device)
    for name, tensor in (("x", x), ("out", result)):
        if tensor.shape[1] > 1 and tensor.stride(1) != 1:
            raise ValueError(f"{name} must have no gaps in a row, got strides {tensor.stride()}")
    _check_config(rows, outs, config, arrived, device)
    return result


def _check_config(
    rows: int, outs: int, config: Config | None, arrived: Tensor | None, device: torch.device
) -> None:
    if isinstance(config, Few):
        expect_range("the rows T of x for threads alone", rows, 0, FEW_ROWS)
    if arrived is None:
        return
    expect("arrived", arrived, (-1,), (torch.int32,), device)
    expect_contiguous("arrived", arrived)
    if isinstance(config, Shares) and arrived.numel() < room_for([(rows, outs)]):
        raise ValueError(
            f"arrived must have at least {room_for([(rows, outs)])} numbers for {rows} x {outs}, "
            f"got {arrived.numel()}"
        )
