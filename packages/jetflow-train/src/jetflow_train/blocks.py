"""Many blocks of many sequences in one pass of the draft head.

Queries are the slots of all blocks; a slot sees the context strictly before its block's anchor in
the same sequence, and its own block. Each block's result equals ``DraftHead.run_block`` on the
context cut before the anchor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from jetflow_core.head.layers import HeadLayer, rotary
from jetflow_core.head.model import DraftHead
from jetflow_core.head.prefix import fill_prefix
from torch import Tensor


class Ropes(NamedTuple):
    """Rotations of a step; each a cosine and a sine that broadcast over the heads."""

    block: tuple[Tensor, Tensor]
    """Of the slots of all blocks ``[R, 1, A * S, dim]``."""
    context: tuple[Tensor, Tensor]
    """Of the columns ``[R, 1, T, dim]``."""


def block_ropes(head: DraftHead, positions: Tensor, anchors: Tensor, dtype: torch.dtype) -> Ropes:
    """The rotations that ``run_blocks`` needs.

    They are no part of it, since a compiler would form the angles, which are fp64, again in every
    kernel that rotates.

    Args:
        head: the draft head.
        positions: int64 ``[R, T]``.
        anchors: int64 ``[R, A]``, columns of the roots.
        dtype: of the head.
    """
    config = head.config
    steps = torch.arange(head.num_slots(config.max_depth), device=anchors.device)
    slots = (positions.gather(1, anchors)[:, :, None] + steps).flatten(1)
    block, context = (
        rotary(places, config.head_dim, config.rope_theta, dtype) for places in (slots, positions)
    )
    return Ropes(block, context)


def run_blocks(
    head: DraftHead,
    features: Tensor,
    embedding: Tensor,
    tokens: Tensor,
    documents: Tensor,
    ropes: Ropes,
    anchors: Tensor,
    fill: Tensor | None = None,
    layers: Sequence[Callable[..., Tensor]] | None = None,
) -> Tensor:
    """Rows that predict depths 1.. of every block.

    Args:
        head: the draft head.
        features: ``[R, T, taps * hidden]`` of the target.
        embedding: the target's embedding ``[V, hidden]`` in the head's type.
        tokens: int64 ``[R, T]``.
        documents: int64 ``[R, T]``, the sequence of each column.
        ropes: from ``block_ropes``.
        anchors: int64 ``[R, A]``, columns of the roots.
        fill: int64 ``[R, A]``, slots 1..fill hold the tokens after the root; None: masks alone.
        layers: ``run_block_layer`` of each layer of the head; None: the head's own.

    Returns:
        ``[R, A, depth, hidden]``, ready for the target's lm_head.
    """
    config = head.config
    rows, count = anchors.shape
    depth = config.max_depth
    slots = head.num_slots(depth)
    roots = tokens.gather(1, anchors).flatten()
    block = head.block_input(roots, embedding, depth)
    if fill is not None:
        # Columns past the row stand behind every depth that counts, and no slot sees a later one.
        steps = torch.arange(slots, device=anchors.device)
        columns = (anchors[:, :, None] + steps).clamp(max=tokens.shape[1] - 1).flatten(1)
        texts = tokens.gather(1, columns).view(-1, slots)
        block = fill_prefix(head, block, embedding, texts, fill.flatten())
    fused = head.fuse(features)
    last = last_context_rows(fused, documents, anchors).flatten(0, 1)
    block = head.bridged(block, embedding[roots], last).view(rows, count * slots, -1)
    visible = context_mask(documents, anchors)
    own = head.block_mask(slots, anchors.device)
    if layers is None:
        own_layers = [layer for layer in head.layers if isinstance(layer, HeadLayer)]
        layers = [partial(run_block_layer, layer) for layer in own_layers]
    for run in layers:
        block = run(block, fused, ropes.block, ropes.context, visible, own)
    hidden: Tensor = head.norm(block).view(rows * count, slots, -1)
    return head.depth_rows(hidden, depth).unflatten(0, (rows, count))


def run_block_layer(
    layer: HeadLayer,
    block: Tensor,
    fused: Tensor,
    rope: tuple[Tensor, Tensor],
    context_rope: tuple[Tensor, Tensor],
    visible: Tensor,
    own: Tensor,
) -> Tensor:
    """One layer over the slots of all blocks, its use of the context included.

    Args:
        layer: of the head.
        block: ``[R, A * S, hidden]``.
        fused: ``[R, T, hidden]``, the context's fused rows.
        rope: of the slots.
        context_rope: of the context's columns.
        visible: bool ``[R, A, T]`` from ``context_mask``.
        own: bool ``[S, S]``.

    Returns:
        ``[R, A * S, hidden]``.
    """
    q, k, v = layer.block_keys_values(block, rope)
    context = layer.context_keys_values(fused, context_rope)
    return layer.finish(block, block_attention(q, (k, v), context, visible, own))


def context_mask(documents: Tensor, anchors: Tensor) -> Tensor:
    """Bool ``[R, A, T]``: the context columns that each block sees."""
    columns = torch.arange(documents.shape[1], device=documents.device)
    same = documents[:, None, :] == documents.gather(1, anchors)[:, :, None]
    return same & (columns < anchors[:, :, None])


def last_context_rows(fused: Tensor, documents: Tensor, anchors: Tensor) -> Tensor:
    """The fused row before each block's root ``[R, A, hidden]``; zeros at a sequence's start."""
    before = (anchors - 1).clamp(min=0)
    rows = fused.gather(1, before[..., None].expand(-1, -1, fused.shape[-1]))
    own = documents.gather(1, before) == documents.gather(1, anchors)
    return rows * (own & (anchors > 0))[..., None]


def block_attention(
    q: Tensor,
    block: tuple[Tensor, Tensor],
    context: tuple[Tensor, Tensor],
    visible: Tensor,
    own: Tensor,
) -> Tensor:
    """Attention of every block over its context and itself, one softmax over both.

    Args:
        q: ``[R, heads, A * S, dim]``.
        block: keys and values ``[R, kv_heads, A * S, dim]`` of the blocks.
        context: keys and values ``[R, kv_heads, T, dim]``.
        visible: bool ``[R, A, T]`` from ``context_mask``.
        own: bool ``[S, S]``.

    Returns:
        ``[R, A * S, heads * dim]``.
    """
    (k, v), (keys, values) = block, context
    rows, heads, _, dim = q.shape
    kv_heads, count, slots = k.shape[1], visible.shape[1], own.shape[0]
    groups = heads // kv_heads
    # [R, kv_heads, A, groups * S, dim]: all queries that read the same keys side by side.
    q = q.view(rows, kv_heads, groups, count, slots, dim).transpose(2, 3).flatten(3, 4)
    q = q * dim**-0.5
    k, v = (x.unflatten(2, (count, slots)) for x in (k, v))
    far = (q.flatten(2, 3) @ keys.transpose(-1, -2)).unflatten(2, (count, groups * slots))
    near = q @ k.transpose(-1, -2)
    far = far.masked_fill(~visible[:, None, :, None, :], float("-inf"))
    near = near.masked_fill(~own.repeat(groups, 1), float("-inf"))
    # A slot always sees itself, so the maximum is finite. It cancels, hence no gradient.
    top = torch.maximum(far.amax(-1, keepdim=True), near.amax(-1, keepdim=True)).detach()
    far, near = (far - top).exp(), (near - top).exp()
    total = far.sum(-1, keepdim=True) + near.sum(-1, keepdim=True)
    mixed = (far.flatten(2, 3) @ values).unflatten(2, (count, groups * slots)) + near @ v
    mixed = (mixed / total).unflatten(3, (groups, slots))
    return mixed.permute(0, 2, 4, 1, 3, 5).reshape(rows, count * slots, heads * dim)
