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
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.backend import (
    Backend,
    Version,
    check_backend,
    check_cut,
    choose,
    tiles_of,
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
    backend: Backend = "auto",
    cut: plan.Cut = "by_shapes",
) -> Tensor:
    """``tree_attention_reference`` on the GPU, with the same arguments.

    Nothing is read back by the host: only shapes, types and devices are checked. Values are the
    caller's promise: ``cu_nodes`` rises from 0 to at most T, ``prefix_len`` is never negative, a
    request's prefix and tree fit in its row of ``page_table``, the pages they need exist, and no
    tree has more than ``64 * W`` rows. Check them once with ``tree_attention_reference``.

    The call can be captured in a CUDA graph and replayed with other prefixes, trees, pages and
    sizes within the captured shapes. A row's bits depend on its own request and on how the call is
    cut, never on what the other requests hold. Cut ``by_shapes``, a call of another T or B may have
    other tiles or clusters, and a row other bits within the tolerance of its type. Cut
    ``by_request``, a request has the same bits alone and in every batch, with one backend, type,
    head dim and number of heads.

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
        backend: ``triton``, ``cuda`` (sm_90a, compiled by nvcc on first use), ``flash``
            (flash-attn 4, the extra of that name; ``attention/flash/limits.py`` says what it takes)
            or ``auto``: the faster one of the first two that takes the call, which
            ``tree_attention_backend`` names.
        cut: ``by_shapes``, the faster one, or ``by_request``: tiles for large trees and pieces by
            length whatever the batch; small trees leave much of such a tile empty, and ``cuda``
            needs a second kernel that puts pieces together.

    Returns:
        [T, Hq, D] in the type of ``q``, added up in float32 (float32 inputs are multiplied as
        such, not as TF32). Padding rows and rows that see nothing are 0 with a log-sum-exp of
        -inf. A slot that no row can see is never read; a row of a tree whose value is NaN reaches
        the rows of its own tree, other branches included (0 * NaN), and nothing else. ``flash``
        alone, with pages of 128 rows, reads the slots behind a request's last row in its page,
        whose values must be finite.

    Raises:
        ValueError: a shape, type, device, scale or ``cut`` is wrong, or ``backend`` was named and
            does not take the call; the message says why.
        RuntimeError: Triton is not installed, or cannot run on the device of ``q``; ``cuda`` or
            ``flash`` was named and cannot be built, imported or run here.
    """
    arguments = TreeAttentionArguments(
        q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors
    )
    check_layout(arguments, out=out, lse=lse)
    check_kernel_limits(arguments)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    check_backend(backend)
    check_cut(cut)
    result = q.new_empty(q.shape) if out is None else out
    torch.ops.jetflow_kernels.tree_attention_out(
        *(q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors),
        *(scale, backend, cut, result, lse),
    )
    return result


def tree_attention_backend(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_nodes: Tensor,
    prefix_len: Tensor,
    ancestors: Tensor,
    *,
    out: Tensor | None = None,
    backend: Backend = "auto",
    cut: plan.Cut = "by_shapes",
) -> Version:
    """Which version ``tree_attention`` runs for these arguments; computes and builds nothing.

    Args:
        q: as in ``tree_attention``, like the other tensors.
        k_pool: as there.
        v_pool: as there.
        page_table: as there.
        cu_nodes: as there.
        prefix_len: as there.
        ancestors: as there.
        out: as there.
        backend: as there.
        cut: as there.

    Raises:
        ValueError: an argument is wrong, or ``backend`` was named and does not take the call.
        RuntimeError: the version that was named cannot run here.
    """
    arguments = TreeAttentionArguments(
        q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors
    )
    check_layout(arguments, out=out, lse=None)
    check_kernel_limits(arguments)
    check_cut(cut)
    return choose(arguments, out=out, backend=backend, cut=cut)


# Defined by its schema: ``custom_op`` would import torch's compiler on the first call.
OPERATOR = "jetflow_kernels::tree_attention_out"
torch.library.define(
    OPERATOR,
    "(Tensor q, Tensor k_pool, Tensor v_pool, Tensor page_table, Tensor cu_nodes, "
    "Tensor prefix_len, Tensor ancestors, float scale, str backend, str cut, Tensor(a!) out, "
    "Tensor(b!)? lse) -> ()",
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
    backend: str,
    cut: str,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """``tree_attention`` on arguments that were checked."""
    arguments = TreeAttentionArguments(
        q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors
    )
    if backend == "flash":
        from jetflow_kernels.attention.flash.launch import launch as launch_flash

        choose(arguments, out=out, backend=backend, cut=cut)
        launch_flash(arguments, out=out, lse=lse, scale=scale)
        return
    if util.find_spec("triton") is None:
        raise RuntimeError("tree_attention needs triton, which is not installed here")
    from jetflow_kernels.attention.launch import INTERPRETED, launch

    if q.device.type != ("cpu" if INTERPRETED else "cuda"):
        raise RuntimeError(
            f"tree_attention runs on CUDA devices, or on the CPU in Triton's interpreter; got "
            f"tensors on {q.device}; tree_attention_reference runs anywhere"
        )
    tiles = tiles_of(arguments, cut)
    if choose(arguments, out=out, backend=backend, cut=cut) == "cuda":
        from jetflow_kernels.attention.k2.launch import launch as launch_cuda

        cluster = plan.BY_LENGTH if cut == "by_request" else None
        launch_cuda(arguments, out=out, lse=lse, scale=scale, tiles=tiles, cluster=cluster)
    else:
        launch(arguments, out=out, lse=lse, scale=scale, tiles=tiles)


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
    backend: str,
    cut: str,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """Shapes only: everything it changes is an argument."""
