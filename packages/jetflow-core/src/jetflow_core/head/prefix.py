"""Blocks that begin with known tokens: what a slot learns to read besides the root and masks.

A block of masks gives each depth one distribution, whatever stands before it. Where the first slots
after the root hold tokens instead, the mask slot behind them predicts what follows these very
tokens. ``second_pass`` asks that of every node of a tree; training shows it blocks like these.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_core.head.model import DraftHead


def check_prefix_filled(head: DraftHead, use: str) -> None:
    """Refuses a head that never saw tokens after the root.

    Raises:
        ValueError: naming the ``use`` that was asked for, and what the head lacks.
    """
    if not head.config.prefix_filled:
        raise ValueError(
            f"{use} needs a head that was trained with prefix-filled blocks "
            "(jetflow train --prefix-fill); this one was not"
        )


def fill_prefix(
    head: DraftHead, block: Tensor, embedding: Tensor, tokens: Tensor, fill: Tensor
) -> Tensor:
    """A block's input whose first slots after the root hold tokens in place of masks.

    Args:
        head: the draft head, made for it.
        block: ``[R, S, hidden]`` from ``DraftHead.block_input``.
        embedding: the target's embedding ``[vocab, hidden]``.
        tokens: int64 ``[R, S]``, the root and the tokens after it.
        fill: int64 ``[R]``, slots 1..fill hold their token; 0 leaves the block as it is.

    Returns:
        ``[R, S, hidden]``.

    Raises:
        ValueError: the head was not made for such blocks.
    """
    check_prefix_filled(head, "a prefix-filled block")
    slots = torch.arange(block.shape[1], device=block.device)
    known = token_rows(head, embedding, tokens, slots)
    filled = (slots > 0) & (slots <= fill[:, None])
    return torch.where(filled[..., None], known, block)


def token_rows(head: DraftHead, embedding: Tensor, tokens: Tensor, slots: Tensor) -> Tensor:
    """Input rows ``[..., hidden]`` of int64 ``tokens`` that stand in ``slots`` of their blocks.

    ``slots`` is int64 of a shape that broadcasts to that of ``tokens``.
    """
    rows = embedding[tokens]
    if head.config.depth_offset_rows:
        rows = rows + head.depth_offsets[slots].to(rows.dtype)
    return rows


def mask_rows(head: DraftHead, embedding: Tensor, slots: Tensor) -> Tensor:
    """Input rows ``[..., hidden]`` of masks in int64 ``slots`` of their blocks."""
    if head.config.mask_token_id is None:
        mask = head.mask_embedding.to(embedding.dtype)
    else:
        mask = embedding[head.config.mask_token_id]
    rows = mask.expand(*slots.shape, -1)
    if head.config.depth_offset_rows:
        rows = rows + head.depth_offsets[slots].to(rows.dtype)
    return rows
