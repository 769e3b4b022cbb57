"""Forward KL to the target over the full vocabulary, in bounded memory.

The gradient of ``KL(p || q)`` by the logits of q is ``q - p``, so one pass over a chunk of rows
gives the loss and the gradient of its inputs; no [rows, vocabulary] tensor outlives its chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LossRows:
    """What the loss reads, split in G chunks.

    Attributes:
        hidden: ``[G, n, H]``, the head's rows, ready for the lm_head.
        parents: ``[G, n, rank]``, parent vectors of the path term; None without one.
        teacher: ``[G, m, H]``, the target's normed hidden states.
        index: int64 ``[G, n]``, the teacher row of each loss row, within its chunk.
        weights: ``[G, n]``.
    """

    hidden: Tensor
    parents: Tensor | None
    teacher: Tensor
    index: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Losses:
    """Weighted sums of the forward KL: of the base alone, and of base plus path term."""

    base: Tensor
    path: Tensor
    base_rows: Tensor
    """Unweighted KL of each row ``[G, n]`` (no gradient)."""
    path_rows: Tensor


def forward_kl(student: Tensor, teacher: Tensor) -> Tensor:
    """``KL(softmax(teacher) || softmax(student))`` of each row; the reference the others meet."""
    p = teacher.log_softmax(-1)
    return (p.exp() * (p - student.log_softmax(-1))).sum(-1)


def reference_losses(rows: LossRows, lm_head: Tensor, path_out: Tensor | None) -> Losses:
    """The losses written plainly, with autograd and every logit in memory."""
    teacher = torch.stack([t[i] for t, i in zip(rows.teacher, rows.index, strict=True)])
    target_logits = teacher @ lm_head.T
    base = rows.hidden @ lm_head.T
    base_rows = forward_kl(base, target_logits)
    path_rows = torch.zeros_like(base_rows)
    if rows.parents is not None and path_out is not None:
        path_rows = forward_kl(base.detach() + rows.parents @ path_out.T, target_logits)
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
    weights: Tensor,
    lm_head: Tensor,
    path_out: Tensor | None,
) -> ChunkResult:
    """Losses and gradients of one chunk.

    Returns:
        KL of each row for the base and with the path term ``[n]``, and the gradients of the
        weighted sums by ``hidden`` ``[n, H]``, ``parents`` ``[n, rank]`` and ``path_out``
        ``[V, rank]``.
    """
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    target_logits = teacher @ lm_head.T
    target_lse = target_logits.to(wide).logsumexp(-1)
    logp = target_logits[index].to(wide) - target_lse[index][:, None]
    base = hidden @ lm_head.T
    base_rows, grad = _kl_and_grad(base.to(wide), logp, weights)
    grad_hidden = grad.to(hidden.dtype) @ lm_head
    if parents is None or path_out is None:
        return base_rows, torch.zeros_like(base_rows), grad_hidden, None, None
    joint = base.to(wide) + (parents @ path_out.T).to(wide)
    path_rows, grad = _kl_and_grad(joint, logp, weights)
    narrow = grad.to(hidden.dtype)
    return base_rows, path_rows, grad_hidden, narrow @ path_out, narrow.T @ parents


def _kl_and_grad(logits: Tensor, logp: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    logq = logits - logits.logsumexp(-1, keepdim=True)
    p = logp.exp()
    rows = (p * (logp - logq)).sum(-1)
    return rows, (logq.exp() - p) * weights[:, None]


ChunkFn = Callable[..., ChunkResult]


class _ChunkedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        parents: Tensor | None,
        path_out: Tensor | None,
        rest: tuple[Tensor, Tensor, Tensor, Tensor, ChunkFn],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        teacher, index, weights, lm_head, chunk_fn = rest
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
    rows: LossRows, lm_head: Tensor, path_out: Tensor | None, chunk_fn: ChunkFn = chunk_losses
) -> Losses:
    """The losses chunk by chunk; values and gradients are those of ``reference_losses``.

    Args:
        rows: inputs; ``hidden`` and ``parents`` in the type of ``lm_head``.
        lm_head: ``[V, H]``, frozen: it gets no gradient.
        path_out: ``[V, rank]``, the path term's output matrix (any float type).
        chunk_fn: ``chunk_losses`` or its compiled form.
    """
    # The base is detached for the path term, so its gradient reaches parents and path_out only.
    rest = (rows.teacher, rows.index, rows.weights, lm_head, chunk_fn)
    return Losses(*_ChunkedLosses.apply(rows.hidden, rows.parents, path_out, rest))
