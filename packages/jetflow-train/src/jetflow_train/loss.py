"""Distillation over the full vocabulary, in bounded memory.

An objective knows its gradient by the logits, so one pass over a chunk of rows gives the loss and
the gradient of its inputs; no [rows, vocabulary] tensor outlives its chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jetflow_train.objectives import Objective, reference_rows


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LossRows:
    """What the loss reads, split in G chunks.

    Attributes:
        hidden: ``[G, n, H]``, the head's rows, ready for the lm_head.
        parents: ``[G, n, rank]``, parent vectors of the path term; None without one.
        teacher: ``[G, m, H]``, the target's normed hidden states.
        index: int64 ``[G, n]``, the teacher row of each loss row, within its chunk.
        tokens: int64 ``[G, n]``, the text's own token at each loss row's depth.
        weights: ``[G, n]``.
    """

    hidden: Tensor
    parents: Tensor | None
    teacher: Tensor
    index: Tensor
    tokens: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Weighted sums of the loss: of the base alone, and of base plus path term."""

    base: Tensor
    path: Tensor
    base_rows: Tensor
    """Unweighted loss of each row ``[G, n]`` (no gradient)."""
    path_rows: Tensor


def reference_losses(
    rows: LossRows, lm_head: Tensor, path_out: Tensor | None, objective: Objective
) -> Losses:
    """The losses written plainly, with autograd and every logit in memory."""
    teacher = torch.stack([t[i] for t, i in zip(rows.teacher, rows.index, strict=True)])
    target_logits = (teacher @ lm_head.T).flatten(0, 1)
    base = (rows.hidden @ lm_head.T).flatten(0, 1)
    tokens, shape = rows.tokens.flatten(), rows.weights.shape
    base_rows = reference_rows(objective, base, target_logits, tokens).view(shape)
    path_rows = torch.zeros_like(base_rows)
    if rows.parents is not None and path_out is not None:
        joint = base.detach() + (rows.parents @ path_out.T).flatten(0, 1)
        path_rows = reference_rows(objective, joint, target_logits, tokens).view(shape)
    return Losses(
        base=(rows.weights * base_rows).sum(),
        path=(rows.weights * path_rows).sum(),
        base_rows=base_rows.detach(),
        path_rows=path_rows.detach(),
    )


ChunkResult = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


def chunk_losses(
    hidden: Tensor,
    parents: Tensor | None,
    teacher: Tensor,
    index: Tensor,
    tokens: Tensor,
    weights: Tensor,
    lm_head: Tensor,
    path_out: Tensor | None,
    *,
    objective: Objective,
) -> ChunkResult:
    """Losses and gradients of one chunk.

    Returns:
        Loss of each row for the base and with the path term ``[n]``, and the gradients of the
        weighted sums by ``hidden`` ``[n, H]``, ``parents`` ``[n, rank]`` and ``path_out``
        ``[V, rank]``.
    """
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    logp = objective.teacher(teacher @ lm_head.T, index, wide)
    base = (hidden @ lm_head.T).to(wide)
    base_rows, grad = objective.rows(base, logp, tokens)
    grad_hidden = (grad * weights[:, None]).to(hidden.dtype) @ lm_head
    if parents is None or path_out is None:
        return base_rows, torch.zeros_like(base_rows), grad_hidden, None, None
    joint = base + (parents @ path_out.T).to(wide)
    path_rows, grad = objective.rows(joint, logp, tokens)
    narrow = (grad * weights[:, None]).to(hidden.dtype)
    return base_rows, path_rows, grad_hidden, narrow @ path_out, narrow.T @ parents


ChunkFn = Callable[..., ChunkResult]


class _ChunkedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        parents: Tensor | None,
        path_out: Tensor | None,
        rest: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, ChunkFn],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        teacher, index, tokens, weights, lm_head, chunk_fn = rest
        out = path_out.to(hidden.dtype) if path_out is not None else None
        grad_hidden = torch.empty_like(hidden)
        grad_parents = torch.empty_like(parents) if parents is not None else None
        grad_out = torch.zeros_like(path_out) if path_out is not None else None
        base_rows, path_rows = torch.empty_like(weights), torch.empty_like(weights)
        for g in range(hidden.shape[0]):
            base_rows[g], path_rows[g], grad_hidden[g], by_parents, by_out = chunk_fn(
                hidden[g],
                parents[g] if parents is not None else None,
                teacher[g],
                index[g],
                tokens[g],
                weights[g],
                lm_head,
                out,
            )
            if by_parents is not None and by_out is not None:
                assert grad_parents is not None and grad_out is not None
                grad_parents[g] = by_parents
                grad_out += by_out
        ctx.grads = (grad_hidden, grad_parents, grad_out)
        ctx.mark_non_differentiable(base_rows, path_rows)
        return (weights * base_rows).sum(), (weights * path_rows).sum(), base_rows, path_rows

    @staticmethod
    def backward(ctx: Any, by_base: Tensor, by_path: Tensor, *_: Tensor) -> Any:
        grad_hidden, grad_parents, grad_out = ctx.grads
        return (
            grad_hidden * by_base.to(grad_hidden.dtype),
            grad_parents * by_path.to(grad_parents.dtype) if grad_parents is not None else None,
            grad_out * by_path.to(grad_out.dtype) if grad_out is not None else None,
            None,
        )


def chunked_losses(
    rows: LossRows, lm_head: Tensor, path_out: Tensor | None, chunk_fn: ChunkFn
) -> Losses:
    """The losses chunk by chunk; values and gradients are those of ``reference_losses``.

    Args:
        rows: inputs; ``hidden`` and ``parents`` in the type of ``lm_head``.
        lm_head: ``[V, H]``, frozen: it gets no gradient.
        path_out: ``[V, rank]``, the path term's output matrix (any float type).
        chunk_fn: ``chunk_losses`` with its objective, plain or compiled.
    """
    # The base is detached for the path term, so its gradient reaches parents and path_out only.
    rest = (rows.teacher, rows.index, rows.tokens, rows.weights, lm_head, chunk_fn)
    return Losses(*_ChunkedLosses.apply(rows.hidden, rows.parents, path_out, rest))
