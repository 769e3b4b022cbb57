"""``prefill_attention``: causal rows of many requests behind their pages, of any number."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments, check_kernel_limits, check_layout
from jetflow_kernels.attention.backend import choose

PrefillBackend = Literal["flash"]
PREFILL_BACKENDS: tuple[PrefillBackend, ...] = get_args(PrefillBackend)


def prefill_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_rows: Tensor,
    prefix_len: Tensor,
    *,
    backend: PrefillBackend,
    scale: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """``prefill_attention_reference`` on the GPU, with the same arguments.

    Packed prompts, or chunks of them: a request's rows, whose keys and values are in its pages
    already, each see the rows before them and themselves. Unlike a chain in ``tree_attention``, a
    request may have more rows than ancestor words can name. Nothing is read back by the host;
    values are the caller's promise, as there.

    Args:
        q: [T, Hq, D] float16 or bfloat16, D 64 or 128; the rows of all requests, one request
            behind the other, then padding.
        k_pool: [pages, page, Hkv, D], pages of 16 to 256 rows; strides of a multiple of 16 bytes.
        v_pool: like ``k_pool``. With pages of 128 rows, the slots behind a request's last row in
            its page hold finite values.
        page_table: [B, max_pages] int32, B at most 4096.
        cu_rows: [B + 1] int32, first row of each request in ``q``.
        prefix_len: [B] int32, rows before a request's first one; 0 for whole prompts.
        backend: ``flash`` (flash-attn 4, the extra of that name); there is no other one yet.
        scale: factor of the scores, above 0; None: ``1 / sqrt(D)``.
        out: [T, Hq, D] in the type of ``q``: written and returned instead of a new tensor.
        lse: [T, Hq] float32: receives the natural log-sum-exp of each row's scaled scores.

    Returns:
        [T, Hq, D] in the type of ``q``; padding rows are 0 with a log-sum-exp of -inf.

    Raises:
        ValueError: a shape, type, device, scale or backend is wrong, or the backend does not take
            the call; the message says why.
        RuntimeError: the backend cannot run here.
    """
    arguments = causal_arguments(q, k_pool, v_pool, page_table, cu_rows, prefix_len)
    check_layout(arguments, out=out, lse=lse)
    check_kernel_limits(arguments)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale must be finite and above 0, got {scale}")
    if backend not in PREFILL_BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(PREFILL_BACKENDS)}, got {backend!r}")
    result = q.new_empty(q.shape) if out is None else out
    torch.ops.jetflow_kernels.prefill_attention_out(
        q, k_pool, v_pool, page_table, cu_rows, prefix_len, scale, result, lse
    )
    return result


def causal_arguments(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_rows: Tensor,
    prefix_len: Tensor,
) -> TreeAttentionArguments:
    """The tensors of a call as those of tree attention, with words that nobody looks at."""
    rows = q.shape[0] if q.dim() else 0
    words = torch.zeros((), dtype=torch.int64, device=q.device).expand(rows, 1)
    return TreeAttentionArguments(q, k_pool, v_pool, page_table, cu_rows, prefix_len, words)


OPERATOR = "jetflow_kernels::prefill_attention_out"
torch.library.define(
    OPERATOR,
    "(Tensor q, Tensor k_pool, Tensor v_pool, Tensor page_table, Tensor cu_rows, "
    "Tensor prefix_len, float scale, Tensor(a!) out, Tensor(b!)? lse) -> ()",
)


@torch.library.impl(OPERATOR, ("cpu", "cuda"))
def _prefill_attention_out(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_rows: Tensor,
    prefix_len: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """``prefill_attention`` on arguments that were checked."""
    from jetflow_kernels.attention.flash.launch import attend_pages

    arguments = causal_arguments(q, k_pool, v_pool, page_table, cu_rows, prefix_len)
    choose(arguments, out=out, backend="flash", cut="by_shapes")
    options: dict[str, object] = {"softmax_scale": scale, "causal": True}
    attend_pages(arguments, out=out, lse=lse, longest=len(q), options=options)


@torch.library.register_fake(OPERATOR)
def _(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_rows: Tensor,
    prefix_len: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """Shapes only: everything it changes is an argument."""
