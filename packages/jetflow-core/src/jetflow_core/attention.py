"""Attention of a pass over cached slots, as transformers calls it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from jetflow_core.cache import KVCache

IMPLEMENTATION = "jetflow"
"""The name under which transformers finds `attend`."""

_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Segment:
    """The rows of one slot in a pass.

    Attributes:
        slot: Whose cache the rows see and extend.
        start: Rows of the slot's prefix, all of them visible; the new rows are written after it.
        offset: The segment's first row in the pass.
        count: How many rows it has.
        bias: `[group * count, start + count]`, 0 where a row sees a column and -inf elsewhere,
            repeated for the query heads that share a key head. None: every row sees everything.
    """

    slot: int
    start: int
    offset: int
    count: int
    bias: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """All that one call of the target needs beside its rows, handed down by transformers.

    Attributes:
        cache: Where keys and values are read and written.
        segments: The rows of the pass, slot by slot, without gaps.
        outputs: Filled by the pass: a tapped layer's own output `[rows, hidden]`.
    """

    cache: KVCache
    segments: Sequence[Segment]
    outputs: dict[int, Tensor] = field(default_factory=dict)


def visibility_bias(
    visible: Tensor, *, start: int, group: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """The additive mask of rows that see a whole prefix and some of each other.

    Args:
        visible: `[N, N]` bool on the CPU, true where a row sees a row of its own segment.
        start: Length of the prefix.
        group: Query heads a key head serves.
        dtype: Type of the queries.
        device: Where the queries are.

    Returns:
        `[group * N, start + N]`, or None if nothing is hidden.
    """
    if bool(visible.all()):
        return None
    count = visible.shape[0]
    width = start + count
    # The fused GPU kernels want aligned mask rows, and would copy the mask in every layer.
    padded = math.ceil(width / _ALIGNMENT) * _ALIGNMENT
    bias = torch.zeros((group, count, padded), dtype=dtype, device=device)
    hidden = torch.zeros((count, count), dtype=dtype).masked_fill_(~visible, -math.inf)
    bias[:, :, start:width] = hidden.to(device)
    return bias.flatten(0, 1)[:, :width]


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    jetflow: Pass | None = None,
    **_unused: object,
) -> tuple[Tensor, None]:
    """Write the new keys and values, and attend over each segment's own slot.

    Args:
        module: The attention layer; its `layer_idx` picks the layer of the cache.
        query: `[1, heads, rows, head_dim]`.
        key: `[1, kv_heads, rows, head_dim]`, positions applied.
        value: Same shape as `key`.
        attention_mask: Must be None: what a row sees is the pass's business.
        scaling: Factor of the scores.
        jetflow: The pass.

    Returns:
        `[1, rows, heads, head_dim]`, and None for the attention weights.

    Raises:
        RuntimeError: The model was called other than through a session.
    """
    if jetflow is None or attention_mask is not None:
        raise RuntimeError(
            "this model's attention belongs to a JetFlow target: run it through a session, "
            "and load another copy for anything else"
        )
    layer: int = module.layer_idx
    parts = [
        _attend_segment(jetflow.cache, layer, segment, query[0], key[0], value[0], scaling)
        for segment in jetflow.segments
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[None], None


def _attend_segment(
    cache: KVCache,
    layer: int,
    segment: Segment,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
) -> Tensor:
    rows = slice(segment.offset, segment.offset + segment.count)
    cache.write(layer, segment.slot, segment.start, key[:, rows], value[:, rows])
    keys, values = cache.read(layer, segment.slot, segment.start + segment.count)
    # Heads that share a key head become rows of it, so keys and values are never repeated.
    packed = query[:, rows].reshape(keys.shape[0], -1, keys.shape[2])
    mixed = scaled_dot_product_attention(
        packed[None], keys[None], values[None], attn_mask=segment.bias, scale=scaling
    )
    return mixed.view(query.shape[0], segment.count, -1).transpose(0, 1)


AttentionInterface.register(IMPLEMENTATION, attend)
