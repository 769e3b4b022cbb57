"""The drafter's blocks in one batch: ragged rows, each request as deep as its own limits allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jetflow_core.head.config import HeadConfig
from torch import Tensor


def reach(config: HeadConfig, depth: int, place: int, longest: int) -> int:
    """Deepest depth that may be drafted after a root.

    Args:
        config: the head's.
        depth: deepest depth wanted.
        place: the root's place in the text.
        longest: places that the engine serves, ``max_model_len``.

    Returns:
        0 to ``depth``. Slot d of a block stands at ``place`` + d, and nothing may stand beyond the
        engine's last place or the head's.
    """
    last = min(longest, config.max_position_embeddings) - 1
    if not config.causal:
        # A bidirectional block cannot be cut: its rows see all slots.
        return depth if place + config.block_size - 1 <= last else 0
    # The last slot of a shifted block predicts the depth after it.
    return max(0, min(depth, last - place))


@dataclass(frozen=True, slots=True)
class Blocks:
    """Slots of all blocks, request after request."""

    positions: Tensor
    """int64 ``[S]`` places in the text."""
    slots: Tensor
    """int64 ``[S]`` cache slots."""
    starts: Tensor
    """int32 ``[R + 1]`` first slot of each request, and the number of slots."""
    lengths: Tensor
    """int32 ``[R]`` rows that each request's attention reaches over, its block included."""
    taken: Tensor
    """bool ``[R, widest]``, which slots of blocks as wide as the widest exist."""


def lay_out(places: Sequence[int], counts: Sequence[int], table: Tensor, block: int) -> Blocks:
    """The blocks of requests.

    Args:
        places: where each request's root stands.
        counts: slots of each request's block, at least 1.
        table: int ``[R, blocks]``, each request's cache blocks.
        block: rows of a cache block.

    Returns:
        The blocks; slots follow from places as vLLM's own do.
    """
    widest = max(counts)
    offsets = torch.arange(widest)
    wanted = torch.tensor(counts)
    taken = offsets[None] < wanted[:, None]
    positions = torch.tensor(places)[:, None] + offsets[None]
    # What is not taken may lie beyond the table.
    column = (positions // block).clamp(max=table.shape[1] - 1)
    slots = table.long().gather(1, column) * block + positions % block
    starts = torch.cat([wanted.new_zeros(1), wanted.cumsum(0)]).int()
    lengths = (torch.tensor(places) + wanted).int()
    return Blocks(positions[taken], slots[taken], starts, lengths, taken)
