"""Paged tree attention in plain torch: one row at a time, in float64, over what the row sees.

Slow and obvious on purpose: nothing that a row does not see is read for it, so no value in an
unused slot, another branch or another request can reach it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments, check_arguments

_WORD_BITS = 64


@torch.no_grad()
def tree_attention_reference(
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
    """Attention of the rows of many draft trees over their requests' paged keys and values.

    Request ``b`` has ``P = prefix_len[b]`` committed rows and a tree of
    ``N = cu_nodes[b + 1] - cu_nodes[b]`` rows whose keys and values were already written behind
    the prefix. A row sees the whole prefix and the tree rows whose bits are set in its words:
    bit ``c`` of word ``w`` stands for tree row ``64 * w + c``. N = 1 with its own bit set is plain
    decoding; N = 0 is a request that sits this pass out.

    Query heads ``g * G .. g * G + G - 1`` share key head ``g``, with ``G = Hq / Hkv``. Any strides
    are accepted: for the packed layout ``[pages, Hkv, page, 2 * D]`` pass the views
    ``packed[..., :D].transpose(1, 2)`` and ``packed[..., D:].transpose(1, 2)``.

    Args:
        q: [T, Hq, D] float16, bfloat16, float32 or float64; the rows of all trees, request by
            request. Rows from ``cu_nodes[B]`` on are padding and are not read.
        k_pool: [pages, page, Hkv, D], type and device of ``q``, positions already applied.
        v_pool: like ``k_pool``.
        page_table: [B, max_pages] int32; entry i of a request is the page of its rows
            ``i * page ..``. Entries past its last row are not read.
        cu_nodes: [B + 1] int32, first row of each request in ``q``, starting with 0.
        prefix_len: [B] int32.
        ancestors: [T, W] int64 (the bit pattern of unsigned words), W >= ceil(max N / 64).
        scale: factor of the scores; None: ``1 / sqrt(D)``.
        out: [T, Hq, D] in the type of ``q``: written and returned instead of a new tensor.
        lse: [T, Hq] float32: receives the natural log-sum-exp of each row's scaled scores.

    Returns:
        [T, Hq, D] in the type of ``q``, computed in float64 and rounded once. Padding rows and
        rows that see nothing are 0 with a log-sum-exp of -inf, never NaN.

    Raises:
        ValueError: a shape, type, device or value is wrong; the message names it. Nothing was
            written then.

    Examples:
        One request of one row and no prefix attends to itself, so the result is its value:

        >>> q = k = v = torch.ones(1, 1, 4)
        >>> tree_attention_reference(
        ...     q, k[None], v[None],
        ...     page_table=torch.zeros(1, 1, dtype=torch.int32),
        ...     cu_nodes=torch.tensor([0, 1], dtype=torch.int32),
        ...     prefix_len=torch.zeros(1, dtype=torch.int32),
        ...     ancestors=torch.ones(1, 1, dtype=torch.int64),
        ... )
        tensor([[[1., 1., 1., 1.]]])
    """
    arguments = TreeAttentionArguments(
        q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors
    )
    requests = check_arguments(arguments, out=out, lse=lse)
    scale = 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    # Filled first, since padding rows are never visited.
    result = torch.zeros_like(q) if out is None else out.zero_()
    if lse is not None:
        lse.fill_(-math.inf)
    for request in requests:
        keys = _gather(k_pool, request.pages, request.length)
        values = _gather(v_pool, request.pages, request.length)
        for row in range(request.first, request.last):
            columns = _visible(ancestors[row], request.prefix)
            if columns.numel() == 0:
                continue
            mixed, total = _attend(q[row].double(), keys[columns], values[columns], scale)
            result[row] = mixed.to(q.dtype)
            if lse is not None:
                lse[row] = total.float()
    return result


def _gather(pool: Tensor, pages: Tensor, length: int) -> Tensor:
    """A request's rows ``[length, Hkv, D]`` in order, from its pages."""
    return pool[pages].flatten(0, 1)[:length]


def _visible(words: Tensor, prefix: int) -> Tensor:
    """Columns a row sees: ``0..prefix-1``, then ``prefix + j`` for every set bit j."""
    shifts = torch.arange(_WORD_BITS, device=words.device)
    bits = (words[:, None] >> shifts) & 1
    tree = torch.nonzero(bits.flatten()).flatten()
    return torch.cat([torch.arange(prefix, device=words.device), tree + prefix])


def _attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """One row's attention, in float64.

    Args:
        q: [Hq, D] float64.
        keys: [C, Hkv, D], C >= 1.
        values: like ``keys``.
        scale: factor of the scores.

    Returns:
        The mixed values [Hq, D] and the log-sum-exp [Hq] of the scores.
    """
    heads, dim = q.shape
    grouped = q.view(keys.shape[1], -1, dim)
    scores = torch.einsum("hgd,chd->hgc", grouped, keys.double()) * scale
    mixed = torch.einsum("hgc,chd->hgd", scores.softmax(-1), values.double())
    return mixed.reshape(heads, dim), scores.logsumexp(-1).reshape(heads)
