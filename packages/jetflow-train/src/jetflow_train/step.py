"""One training step's losses: target features, packed head pass, chunked loss."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from numpy.typing import NDArray
from torch import Tensor, nn

from jetflow_train.blocks import block_ropes, run_block_layer, run_blocks
from jetflow_train.loss import ChunkFn, Losses, LossRows, chunk_losses, chunked_losses
from jetflow_train.objectives import Objective
from jetflow_train.packing import Batch
from jetflow_train.sight import (
    Documents,
    document_mask,
    document_starts,
    packs_documents,
)
from jetflow_train.target import AnyTarget
from jetflow_train.target_layer import run_layer


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFunctions:
    """The heavy parts of a step, plain or compiled."""

    layer: Callable[..., Tensor]
    blocks: Callable[..., Tensor]
    head_layer: Callable[..., Tensor]
    """A layer of ``blocks`` alone, for a head whose layers are gathered one by one."""
    chunk: ChunkFn

    @staticmethod
    def plain(objective: Objective) -> StepFunctions:
        """The parts as they are written."""
        return StepFunctions(
            layer=run_layer,
            blocks=run_blocks,
            head_layer=run_block_layer,
            chunk=partial(chunk_losses, objective=objective),
        )

    @staticmethod
    def compiled(objective: Objective) -> StepFunctions:
        """The same parts through torch.compile, for shapes that never change."""
        parts = StepFunctions.plain(objective)
        return StepFunctions(
            layer=torch.compile(parts.layer, dynamic=False),
            blocks=torch.compile(parts.blocks, dynamic=False),
            head_layer=torch.compile(parts.head_layer, dynamic=False),
            chunk=torch.compile(parts.chunk, dynamic=False),
        )


class KeptStates(Protocol):
    """Features and final hidden states that were captured before."""

    def rows(self, places: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """``[R, T, taps * hidden]`` and ``[R, T, hidden]`` of the tokens in ``places`` [R, T]."""


class StepLosses(nn.Module):
    """The losses of a batch as a module, so that torch's data parallelism can wrap it.

    Args:
        target: the frozen target.
        head: the head in training.
        embedding: the target's embedding in the head's type.
        chunks: pieces in which the loss is computed.
        functions: plain or compiled parts.
        kept: hidden states of the target that are not captured anew.
    """

    def __init__(
        self,
        target: AnyTarget,
        head: DraftHead,
        embedding: Tensor,
        chunks: int,
        functions: StepFunctions,
        kept: KeptStates | None = None,
    ) -> None:
        super().__init__()
        self.head = head
        self._fixed = (target, embedding, chunks, functions, kept)

    def forward(self, batch: Batch, weights: NDArray[np.float32]) -> Tensor:
        """Weighted sums ``[2]`` of base and path losses; see ``training_losses``."""
        target, embedding, chunks, functions, kept = self._fixed
        losses = training_losses(
            target,
            self.head,
            embedding,
            batch,
            weights,
            chunks=chunks,
            functions=functions,
            kept=kept,
        )
        return torch.stack([losses.base, losses.path])


def training_losses(
    target: AnyTarget,
    head: DraftHead,
    embedding: Tensor,
    batch: Batch,
    weights: NDArray[np.float32],
    *,
    chunks: int,
    functions: StepFunctions,
    kept: KeptStates | None = None,
) -> Losses:
    """Losses of one batch, with gradients for the head.

    Args:
        target: the frozen target.
        head: the head in training.
        embedding: the target's embedding in the head's type.
        batch: host arrays.
        weights: ``[R, A, depth]`` of the loss rows.
        chunks: pieces in which the loss is computed.
        functions: plain or compiled parts.
        kept: hidden states of the target; None: they are captured now.
    """
    device = target.device
    tokens, documents, positions, anchors = (
        put(array, device)
        for array in (batch.tokens, batch.documents, batch.positions, batch.anchors)
    )
    if kept is not None:
        features, final = kept.rows(batch.places, device)
    else:
        features, final = replace(target, layer_fn=functions.layer).capture(
            tokens, positions, batch_sight(target, batch.documents), head.config.target_layer_ids
        )
    with autocast(device, head):
        ropes = block_ropes(head, positions, anchors, embedding.dtype)
        fill = put(batch.fill, device) if batch.fill is not None else None
        hidden = functions.blocks(
            head, features, embedding, tokens, documents, ropes, anchors, fill
        )
        teachers = teacher_columns(anchors, hidden.shape[2], tokens.shape[1])
        parents = None
        if head.path is not None:
            previous = tokens.gather(1, teachers.flatten(1)).view_as(teachers)
            parents = head.path.parent_vectors(embedding[previous], hidden.detach())
    rows = loss_rows(target, hidden, parents, final, tokens, teachers, put(weights, device), chunks)
    path_out = head.path.out.weight if head.path is not None else None
    return chunked_losses(rows, target.lm_head, path_out, functions.chunk)


def batch_sight(target: AnyTarget, documents: NDArray[np.int64]) -> Tensor | Documents:
    """What ``target.capture`` needs to know of a batch's ``documents`` ``[R, T]``."""
    if packs_documents(target.device, target.dtype, target.shape.head_dim):
        return Documents(put(document_starts(documents), target.device), documents.shape[1])
    return document_mask(put(documents, target.device))


def teacher_columns(anchors: Tensor, depth: int, width: int) -> Tensor:
    """Columns ``[R, A, depth]`` whose logits teach depths 1..depth: anchor, anchor + 1, ...

    The token at the same column is the true parent of that depth (the root at depth 1). Columns
    past the row are clamped; rows that read them weigh nothing.
    """
    steps = torch.arange(depth, device=anchors.device)
    return (anchors[:, :, None] + steps).clamp(max=width - 1)


def loss_rows(
    target: AnyTarget,
    hidden: Tensor,
    parents: Tensor | None,
    final: Tensor,
    tokens: Tensor,
    teachers: Tensor,
    weights: Tensor,
    chunks: int,
) -> LossRows:
    """The loss's inputs in ``chunks`` equal pieces of whole packed rows."""
    rows, width = final.shape[0], final.shape[1]
    each = rows // chunks
    local = torch.arange(rows, device=final.device) % each
    index = teachers + (local * width)[:, None, None]
    # The text's token at a depth stands one column after its parent's.
    texts = tokens.gather(1, (teachers + 1).clamp(max=width - 1).flatten(1)).view_as(teachers)
    dtype = target.dtype

    def cut(x: Tensor, kept: int) -> Tensor:
        """Chunks first, then all that is not among the last ``kept`` axes as one."""
        tail = x.shape[x.ndim - kept :]
        return x.reshape(chunks, -1, *tail)

    return LossRows(
        hidden=cut(hidden, 1).to(dtype),
        parents=cut(parents, 1).to(dtype) if parents is not None else None,
        teacher=cut(final, 1),
        index=cut(index, 0),
        tokens=cut(texts, 0),
        weights=cut(weights, 0).to(torch.float64 if dtype == torch.float64 else torch.float32),
    )


def autocast(device: torch.device, head: DraftHead) -> AbstractContextManager[object]:
    """bf16 matrix products over fp32 weights on a GPU; on a CPU the head's own type."""
    if device.type != "cuda" or next(head.parameters()).dtype != torch.float32:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast("cuda", dtype=torch.bfloat16)
    return context


def put(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """``array`` on ``device``; the copy to a GPU does not make the host wait."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
