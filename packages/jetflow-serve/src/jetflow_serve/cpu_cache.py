"""vLLM's KV cache on a CPU, as its ``vec`` kernels lay it out: read rows, move rows.

A layer's cache is ``[blocks, kv heads, block, 2 * head size]``; inside a block and head the first
half of the memory holds the keys turned around, ``[head size, block]``, the second half the values,
``[block, head size]``.
"""

from __future__ import annotations

from torch import Tensor


def keys_values(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Views of a layer's cache.

    Args:
        cache: ``[blocks, kv heads, block, 2 * head size]``, contiguous inside a block and head.

    Returns:
        Keys ``[blocks, kv heads, head size, block]`` and values
        ``[blocks, kv heads, block, head size]``, both views.
    """
    blocks, heads, block, double = cache.shape
    halves = cache.view(blocks, heads, 2, block * double // 2)
    size = double // 2
    return (
        halves[:, :, 0].view(blocks, heads, size, block),
        halves[:, :, 1].view(blocks, heads, block, size),
    )


def read_rows(cache: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[kv heads, L, head size]`` of int64 ``slots`` ``[L]``, copied."""
    keys, values = keys_values(cache)
    block, offset = slots // cache.shape[2], slots % cache.shape[2]
    return keys[block, :, :, offset].transpose(0, 1), values[block, :, offset].transpose(0, 1)


def move_rows(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copies the rows in slots ``sources`` ``[M]`` to slots ``targets`` ``[M]``, all at once.

    A target may be a source too: everything is read before anything is written.
    """
    keys, values = keys_values(cache)
    size = cache.shape[2]
    from_block, from_offset = sources // size, sources % size
    to_block, to_offset = targets // size, targets % size
    moved_keys = keys[from_block, :, :, from_offset]
    moved_values = values[from_block, :, from_offset]
    keys[to_block, :, :, to_offset] = moved_keys
    values[to_block, :, to_offset] = moved_values
