"""Attention over pages and writes to them, in plain torch and in shapes that no value decides."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

WORD_BITS = 64


def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_nodes: Tensor,
    prefix_len: Tensor,
    ancestors: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    """As ``RoundOps.tree_attention`` says; every request reads all pages of its table.

    Rows that no row can see are replaced by zeros, so that nothing depends on what they hold.
    """
    rows, heads, _ = q.shape
    kv_heads = k_pool.shape[2]
    most = min(rows, WORD_BITS * ancestors.shape[1])
    counts = cu_nodes[1:] - cu_nodes[:-1]
    places = torch.arange(most, device=q.device)
    real = places < counts[:, None]
    sources = (cu_nodes[:-1, None] + places).clamp(max=rows - 1)
    keys, values = (_read(pool, page_table, prefix_len + counts) for pool in (k_pool, v_pool))
    seen = _visible(ancestors[sources], prefix_len, keys.shape[1]) | ~real[..., None]
    bias = torch.zeros(seen.shape, dtype=q.dtype, device=q.device)
    bias = bias.masked_fill_(~seen, -math.inf)
    # Heads that share a key head become rows of it, so that keys and values are never repeated.
    grouped = q[sources].unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(
        grouped.flatten(2, 3),
        keys.transpose(1, 2),
        values.transpose(1, 2),
        attn_mask=bias.repeat(1, heads // kv_heads, 1)[:, None],
        scale=scale,
    )
    padded = mixed.unflatten(2, (-1, most)).permute(0, 3, 1, 2, 4).flatten(2, 3)
    owners, within = owners_of_rows(cu_nodes, rows)
    result = padded[owners, within.clamp(max=most - 1)]
    behind = torch.arange(rows, device=q.device) >= cu_nodes[-1]
    return result.masked_fill(behind[:, None, None], 0.0)


def owners_of_rows(cu_nodes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Whose each packed row is, and which of its request's rows.

    Args:
        cu_nodes: int32 ``[R + 1]``.
        rows: T.

    Returns:
        int64 ``[T]`` twice; rows behind the last request's belong to the last request.
    """
    every = torch.arange(rows, device=cu_nodes.device, dtype=cu_nodes.dtype)
    owners = torch.searchsorted(cu_nodes[1:].contiguous(), every, right=True)
    owners = owners.clamp(max=cu_nodes.shape[0] - 2)
    return owners, (every - cu_nodes[owners]).long()


def _read(pool: Tensor, page_table: Tensor, lengths: Tensor) -> Tensor:
    """Rows ``[R, L, kv_heads, dim]`` of all pages of each request, zeros from its length on."""
    found = pool[page_table].flatten(1, 2)
    columns = torch.arange(found.shape[1], device=pool.device)
    return found.masked_fill((columns >= lengths[:, None])[..., None, None], 0.0)


def _visible(words: Tensor, prefix_len: Tensor, columns: int) -> Tensor:
    """Bool ``[R, C, L]``: which columns the rows with these words ``[R, C, W]`` see."""
    own = torch.arange(columns, device=words.device) - prefix_len[:, None]
    word = (own // WORD_BITS).clamp(0, words.shape[2] - 1).long()
    bits = (
        words.gather(2, word[:, None].expand(-1, words.shape[1], -1)) >> (own % WORD_BITS)[:, None]
    )
    inside = (own >= 0) & (own < WORD_BITS * words.shape[2])
    return (inside[:, None] & (bits & 1).bool()) | (own < 0)[:, None]
