"""From the head's rows to candidates, with the top-K of a round's own step."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import along_paths, each_depths_best
from jetflow_core.rounds.ops import RoundOps


def round_candidates(
    head: DraftHead,
    ops: RoundOps,
    embedding: Tensor,
    roots: Tensor,
    hidden: Tensor,
    logits: Tensor,
) -> tuple[Tensor, Tensor]:
    """What ``head.proposal.draft_candidates`` gives, with one pass over the vocabulary.

    Args:
        head: the draft head that made ``hidden``.
        ops: whose ``depth_topk`` is used.
        embedding: the target's embedding ``[vocab, hidden]``.
        roots: int32 ``[R]``.
        hidden: ``[R, D, hidden]``, the head's rows of depths 1..D, D at least 1.
        logits: ``[R, D, vocab]`` of these rows.

    Returns:
        int32 ``[R, D, K]``, and ``[R, D, P, K]`` of at least float32, P = K with a path term.
    """
    requests, depth, vocabulary = logits.shape
    width = min(head.config.candidates, vocabulary)
    pool = min(max(width, head.config.candidate_pool), vocabulary)
    top = ops.depth_topk(logits.flatten(0, 1), pool)
    tokens = top.tokens.view(requests, depth, pool)
    scores = top.log_probs.view(requests, depth, pool)
    if head.path is None:
        return tokens, scores.unsqueeze(2)
    # The parent of depth 1 is the root, which is known: its term is exact over all tokens.
    bias = head.path.bias(head.path.parent_vectors(embedding[roots], hidden[:, 0]))
    first = ops.depth_topk(_wide(logits[:, 0]) + bias, width)
    first_tokens, first_scores = first.tokens, first.log_probs
    deeper = along_paths if pool > width else each_depths_best
    found, table = deeper(
        head.path, embedding, hidden[:, 1:], (first_tokens.long(), first_scores),
        tokens[:, 1:].long(), scores[:, 1:],
    )  # fmt: skip
    first_table = first_scores[:, None, None].expand(-1, 1, width, width)
    return (
        torch.cat([first_tokens[:, None], found.int()], dim=1),
        torch.cat([first_table, table], dim=1).clamp(max=0.0),
    )


def _wide(logits: Tensor) -> Tensor:
    """At least float32: rounding the sum of logit and path term would make ties."""
    return logits if logits.dtype == torch.float64 else logits.float()


def tempered(log_probs: Tensor, temperatures: Tensor) -> Tensor:
    """What ``jetflow_tree.calibrated`` makes of candidates, one temperature a request.

    Args:
        log_probs: ``[R, D, P, K]``.
        temperatures: float64 ``[R]``; 1 changes nothing.

    Returns:
        float64 ``[R, D, P, K]``.
    """
    scale, wide = temperatures[:, None, None, None], log_probs.double()
    rest = (1.0 - wide.exp().sum(-1, keepdim=True)).clamp(min=0.0).log()
    mass = torch.cat([wide, rest], dim=-1) / scale
    changed = (wide / scale - mass.logsumexp(-1, keepdim=True)).clamp(max=0.0)
    return torch.where(scale == 1.0, wide, changed)
