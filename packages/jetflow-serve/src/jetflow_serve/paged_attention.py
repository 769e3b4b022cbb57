"""Attention of a tree's rows over a paged cache in plain torch: every row sees its own path."""

from __future__ import annotations

import torch
from jetflow_core.head.layers import grouped_attention
from torch import Tensor

from jetflow_serve.cpu_cache import read_rows


def attend_tree(
    query: Tensor, cache: Tensor, block_table: Tensor, context: int, sight: Tensor, scale: float
) -> Tensor:
    """Attention of one request's tree.

    Args:
        query: ``[N, heads, head size]`` of the tree's rows.
        cache: the layer's cache, in which the rows' own keys and values are already.
        block_table: int ``[blocks]``, the request's blocks in the order of the text.
        context: cached rows before the tree; all of them are seen.
        sight: bool ``[N, N]``, which rows of the tree each row sees.
        scale: what scores are multiplied with.

    Returns:
        ``[N, heads * head size]``.
    """
    rows = query.shape[0]
    block = cache.shape[2]
    places = torch.arange(context + rows, device=query.device)
    slots = block_table.long()[places // block] * block + places % block
    keys, values = read_rows(cache, slots)
    seen = torch.cat([sight.new_ones(rows, context), sight], dim=1)
    # ``grouped_attention`` divides by the root of the head size; the layer may scale otherwise.
    factor = scale * query.shape[-1] ** 0.5
    turned = (query * factor).transpose(0, 1)[None]
    return grouped_attention(turned, keys[None], values[None], seen[None, None])[0]
