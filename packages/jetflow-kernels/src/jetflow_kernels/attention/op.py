"""``tree_attention``: the public call and its ``torch.library`` operator.

Triton is imported when the operator first runs, so the package can be imported without it.
"""

from __future__ import annotations

import math
from importlib import util

import torch
from torch import Tensor

from jetflow_kernels.arguments import (
    TreeAttentionArguments,
    check_kernel_limits,
    check_layout,
)


def tree_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_nodes: Tensor,
    prefix_len: Tensor,
    ancestors: Tensor,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """``tree_attention_reference`` on the GPU, with the same arguments.

    Nothing is read back by the host: only shapes, types and devices are checked. Values are the
    caller's promise: ``cu_nodes`` rises from 0 to at most T, ``prefix_len`` is never negative, a
    request's prefix and tree fit in its row of ``page_table``, the pages they need exist, and no
    tree has more than ``64 * W`` rows. Check them once with ``tree_attention_reference``.

    The call can be captured in a CUDA graph and replayed with other prefixes, trees, pages and
    sizes within the captured shapes. A row's bits depend on its own request and on the tiles that
    T, B and the types choose, not on the other requests.

    Args:
        q: [T, Hq, D] float16, bfloat16 or float32, D one of 64, 128 and 256; any strides.
        k_pool: [pages, page, Hkv, D], pages of 16 to 256 rows.
        v_pool: like ``k_pool``.
        page_table: [B, max_pages] int32, B at most 4096.
        cu_nodes: [B + 1] int32.
        prefix_len: [B] int32.
        ancestors: [T, W] int64, W from 1 to 4; bits past a tree's last row are ignored.
        scale: factor of the scores; None: ``1 / sqrt(D)``.
        out: [T, Hq, D] in the type of ``q``: written and returned instead of a new tensor.
        lse: [T, Hq] float32: receives the natural log-sum-exp of each row's scaled scores.

    Returns:
        [T, Hq, D] in the type of ``q``, added up in float32 (float32 inputs are multiplied as
        such, not as TF32). Padding rows and rows that see nothing are 0 with a log-sum-exp of
        -inf. A slot that no row can see is never read; a row of a tree whose value is NaN reaches
        the rows of its own tree, other branches included (0 * NaN), and nothing else.

    Raises:
        ValueError: a shape, type, device or scale is wrong; the message names it.
        RuntimeError: Triton is not installed, or cannot run on the device of ``q``.
    """
    arguments = TreeAttentionArguments(
        q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors
    )
    check_layout(arguments, out=out, lse=lse)
    check_kernel_limits(arguments)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    result = q.new_empty(q.shape) if out is None else out
    torch.ops.jetflow_kernels.tree_attention_out(
        q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors, scale, result, lse
    )
    return result


# Defined by its schema: ``custom_op`` would import torch's compiler on the first call.
OPERATOR = "jetflow_kernels::tree_attention_out"
torch.library.define(
    OPERATOR,
    "(Tensor q, Tensor k_pool, Tensor v_pool, Tensor page_table, Tensor cu_nodes, "
    "Tensor prefix_len, Tensor ancestors, float scale, Tensor(a!) out, Tensor(b!)? lse) -> ()",
)


@torch.library.impl(OPERATOR, ("cpu", "cuda"))
def _tree_attention_out(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_nodes: Tensor,
    prefix_len: Tensor,
    ancestors: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """``tree_attention`` on arguments that were checked."""
    if util.find_spec("triton") is None:
        raise RuntimeError("tree_attention needs triton, which is not installed here")
    from jetflow_kernels.attention.launch import INTERPRETED, launch

    if q.device.type != ("cpu" if INTERPRETED else "cuda"):
        raise RuntimeError(
            f"tree_attention runs on CUDA devices, or on the CPU in Triton's interpreter; got "
            f"tensors on {q.device}; tree_attention_reference runs anywhere"
        )
    launch(
        TreeAttentionArguments(q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors),
        out=out,
        lse=lse,
        scale=scale,
    )


@torch.library.register_fake(OPERATOR)
def _(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_nodes: Tensor,
    prefix_len: Tensor,
    ancestors: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """Shapes only: everything it changes is an argument."""
