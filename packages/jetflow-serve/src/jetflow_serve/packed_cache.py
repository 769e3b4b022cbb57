"""vLLM's KV cache on a GPU: keys and values of a row side by side.

A layer's cache is ``[blocks, kv heads, block, 2 * head size]``, in whatever order its memory has.
"""

from __future__ import annotations

from torch import Tensor


def packed_pools(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[blocks, block, kv heads, head size]`` of a layer's cache, both views."""
    size = cache.shape[-1] // 2
    rows = cache.transpose(1, 2)
    return rows[..., :size], rows[..., size:]
