"""From a block's logits to candidates: K tokens a depth, and how likely each is after each parent.

Without a path term a depth's best tokens are its candidates. With one, depth 1 is exact over the
whole vocabulary, since its parent, the root, is known. Deeper candidates are a depth's own best
tokens, or, with a ``candidate_pool``, those of so many best tokens that the drafted paths make
likeliest: a token that hardly ever stands at this depth may be the obvious one after a parent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_core.head.model import DraftHead
from jetflow_core.head.path import PathTerm, conditional_table


def draft_candidates(
    head: DraftHead, embedding: Tensor, roots: Tensor, hidden: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Candidates of each depth and their conditional log-probabilities.

    Args:
        head: the draft head that made ``hidden``.
        embedding: the target's embedding ``[vocab, hidden]``.
        roots: int64 ``[R]``, the tokens before depth 1.
        hidden: ``[R, D, hidden]``, the head's rows of depths 1..D.
        logits: ``[R, D, vocab]`` of these rows, in the type of the result.

    Returns:
        int64 ``[R, D, K]``, and ``[R, D, P, K]`` with P = K for a head with a path term, else 1:
        never above 0, what lacks to one belongs to all other tokens.
    """
    width = min(head.config.candidates, logits.shape[-1])
    total = logits.logsumexp(-1, keepdim=True)
    if head.path is None:
        best, tokens = logits.topk(width, dim=-1)
        return tokens, (best - total).clamp(max=0.0).unsqueeze(2)
    first = logits[:, 0] + head.path.bias(
        head.path.parent_vectors(embedding[roots], hidden[:, 0])
    ).to(logits.dtype)
    first_best, first_tokens = first.topk(width, dim=-1)
    first_scores = first_best - first.logsumexp(-1, keepdim=True)
    pool = min(max(width, head.config.candidate_pool), logits.shape[-1])
    best, pooled = logits[:, 1:].topk(pool, dim=-1)
    deeper = along_paths if pool > width else each_depths_best
    tokens, table = deeper(
        head.path,
        embedding,
        hidden[:, 1:],
        (first_tokens, first_scores),
        pooled,
        best - total[:, 1:],
    )
    first_table = first_scores[:, None, None].expand(-1, 1, width, width)
    return (
        torch.cat([first_tokens[:, None], tokens], dim=1),
        torch.cat([first_table, table], dim=1).clamp(max=0.0),
    )


def each_depths_best(
    path: PathTerm,
    embedding: Tensor,
    hidden: Tensor,
    first: tuple[Tensor, Tensor],
    pooled: Tensor,
    base: Tensor,
) -> tuple[Tensor, Tensor]:
    """Tokens ``[R, D, K]`` and table ``[R, D, K, K]`` of depths 2.., all of them at once."""
    parents = torch.cat([first[0][:, None], pooled[:, :-1]], dim=1)[:, : pooled.shape[1]]
    vectors = path.parent_vectors(embedding[parents], hidden[:, :, None])
    bias = path.candidate_bias(vectors, pooled).to(base.dtype)
    return pooled, conditional_table(base, bias)


def along_paths(
    path: PathTerm,
    embedding: Tensor,
    hidden: Tensor,
    first: tuple[Tensor, Tensor],
    pooled: Tensor,
    base: Tensor,
) -> tuple[Tensor, Tensor]:
    """Like ``each_depths_best``, but each depth's K tokens are chosen out of its pool.

    A token's chance is the sum over the parent candidates of the parent's chance and the token's
    after it; the chances of the chosen ones are those of the next depth's parents.
    """
    parents, chance = first[0], first[1].exp()
    width = parents.shape[1]
    tokens, tables = [], []
    for depth in range(pooled.shape[1]):
        vectors = path.parent_vectors(embedding[parents], hidden[:, depth, None])
        bias = path.candidate_bias(vectors, pooled[:, depth]).to(base.dtype)
        scores = conditional_table(base[:, depth], bias)
        reached = (chance[:, :, None] * scores.exp()).sum(1)
        chance, chosen = reached.topk(width, dim=-1)
        parents = pooled[:, depth].gather(1, chosen)
        tokens.append(parents)
        tables.append(scores.gather(2, chosen[:, None].expand(-1, width, -1)))
    if not tokens:
        return pooled[..., :width], base.new_empty((*base.shape[:2], width, width))
    return torch.stack(tokens, dim=1), torch.stack(tables, dim=1)
