"""``row_attention``: the public call and its ``torch.library`` operator.

Triton is imported when the operator first runs, so the package can be imported without it.
"""

from __future__ import annotations

from importlib import util

import torch
from torch import Tensor

from jetflow_kernels.round.checks import device_of, power_of_two
from jetflow_kernels.rows.arguments import check_kernel_limits, check_rows
from jetflow_kernels.rows.tiles import Tiles, tiles_for, width_of


def row_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Plain decoding of many rows: one query token each, over the row's own contiguous cache.

    One program reads the keys and values of one row and key head once, for all query heads that
    share them. A row is never split over programs: it is meant for many rows (some hundreds fill a
    device), not for a few long ones, for which ``tree_attention`` is there.

    The host reads nothing back: lengths are looked at on the device, so one CUDA graph serves any
    of them. That they lie in ``0..capacity`` is the caller's promise; ``row_attention_reference``
    checks it. A row's bits depend on its own query, columns and length, not on the other rows.

    Args:
        queries: ``[R, heads, dim]`` bfloat16, float16 or float32, dim a multiple of 8 up to 256;
            any strides.
        keys: ``[R, capacity, kv_heads, dim]`` in the type of ``queries``, any strides, such as
            a view of a larger cache; query heads ``g * G .. g * G + G - 1`` share key head ``g``,
            with ``G = heads / kv_heads`` at most 32.
        values: like ``keys``.
        lengths: int32 ``[R]``: how many columns a row sees; what lies behind is never read.
        scale: factor of the scores; None: ``1 / sqrt(dim)``.
        out: ``[R, heads, dim]`` in the type of ``queries``: written and returned instead of a new
            tensor.

    Returns:
        ``[R, heads, dim]`` in the type of ``queries``, added up in float32 (float32 inputs are
        multiplied as such, not as TF32). A row of length 0 is 0.

    Raises:
        ValueError: a shape, type, device or scale is wrong; the message names it.
        RuntimeError: Triton is not installed, or cannot run on the device of ``queries``.
    """
    scale, result = check_rows(queries, keys, values, lengths, scale=scale, out=out)
    check_kernel_limits(queries, keys)
    torch.ops.jetflow_kernels.row_attention_out(queries, keys, values, lengths, scale, result)
    return result


# Defined by its schema: ``custom_op`` would import torch's compiler on the first call.
OPERATOR = "jetflow_kernels::row_attention_out"
torch.library.define(
    OPERATOR,
    "(Tensor queries, Tensor keys, Tensor values, Tensor lengths, float scale, Tensor(a!) out)"
    " -> ()",
)


@torch.library.impl(OPERATOR, ("cpu", "cuda"))
def _row_attention_out(
    queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, scale: float, out: Tensor
) -> None:
    """``row_attention`` on arguments that were checked."""
    tiles = tiles_for(queries.shape[2], queries.dtype)
    launch(queries, keys, values, lengths, scale, out, tiles)


@torch.library.register_fake(OPERATOR)
def _(
    queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, scale: float, out: Tensor
) -> None:
    """Shapes only: everything it changes is an argument."""


def launch(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    scale: float,
    out: Tensor,
    tiles: Tiles,
) -> None:
    """Compute ``out`` on the current stream with tiles of one's own choice.

    Raises:
        RuntimeError: Triton is not installed, or cannot run on the device of ``queries``.
    """
    if util.find_spec("triton") is None:
        raise RuntimeError("row_attention needs triton, which is not installed here")
    from triton.runtime.jit import JITFunction

    from jetflow_kernels.rows.attention_kernel import row_attention_kernel

    interpreted = not isinstance(row_attention_kernel, JITFunction)
    if queries.device.type != ("cpu" if interpreted else "cuda"):
        raise RuntimeError(
            f"row_attention runs on CUDA devices, or on the CPU in Triton's interpreter; got "
            f"tensors on {queries.device}; row_attention_reference runs anywhere"
        )
    rows, heads, dim = queries.shape
    if rows == 0:
        return
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    with device_of(row_attention_kernel, queries):
        row_attention_kernel[(rows * kv_heads,)](
            *(queries, keys, values, lengths, out),
            *queries.stride(),
            *keys.stride(),
            *values.stride(),
            *lengths.stride(),
            *out.stride(),
            scale,
            KV_HEADS=kv_heads,
            GROUP=group,
            DIM=dim,
            BLOCK_M=power_of_two(group, least=16),
            BLOCK_N=tiles.columns,
            BLOCK_D=width_of(dim),
            ALIKE=keys.stride() == values.stride(),
            WIDEN=interpreted and queries.dtype == torch.bfloat16,
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )
