"""What a block attends to: the cached context of its request, and itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from jetflow_core.head.layers import grouped_attention

KeysValues = tuple[Tensor, Tensor]


class BlockContext(Protocol):
    """Attention of the blocks of a pass, layer by layer."""

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention's result ``[R, S, heads * dim]``.

        Args:
            layer: number of the head's layer.
            query: ``[R, heads, S, dim]`` of the blocks' slots.
            keys: ``[R, kv_heads, S, dim]`` of the same slots.
            values: like ``keys``.
        """
        ...


class OwnContexts:
    """Each request attends in a call of its own, over exactly its own rows.

    A padded call would need a mask over the context. Fused GPU kernels have given NaN for such
    masks, and a request must not depend on the length of its neighbours anyhow.

    Args:
        layers: for each layer and request, keys and values ``[kv_heads, T, dim]``.
        inside: bool ``[S, S]``, which slots of a block (columns) a slot (row) sees.
    """

    def __init__(self, layers: Sequence[Sequence[KeysValues]], inside: Tensor) -> None:
        self._layers = layers
        slots = inside.shape[0]
        self._masks = [
            torch.cat([inside.new_ones(slots, keys.shape[1]), inside], dim=1)[None, None]
            for keys, _ in layers[0]
        ]

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As ``BlockContext`` says."""
        attended = [
            grouped_attention(
                query[i : i + 1],
                torch.cat([cached[0], keys[i]], dim=1)[None],
                torch.cat([cached[1], values[i]], dim=1)[None],
                mask,
            )
            for i, (cached, mask) in enumerate(zip(self._layers[layer], self._masks, strict=True))
        ]
        return torch.cat(attended)


class PaddedContext:
    """All requests attend in one call, over contexts padded to one length.

    Args:
        layers: for each layer, keys and values ``[R, kv_heads, T, dim]``; padding finite.
        mask: bool ``[R or 1, 1, S, T + S]`` over the context's columns and the block's.
    """

    def __init__(self, layers: Sequence[KeysValues], mask: Tensor) -> None:
        self._layers, self._mask = layers, mask

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As ``BlockContext`` says."""
        cached_keys, cached_values = self._layers[layer]
        return grouped_attention(
            query,
            torch.cat([cached_keys, keys], dim=2),
            torch.cat([cached_values, values], dim=2),
            self._mask,
        )
