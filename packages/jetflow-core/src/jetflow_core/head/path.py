"""The path term: what a parent token adds to its children's logits.

``logit(child b | parent a, depth d) = base_d(b) + <out[b], v>`` with ``v = unit_rms(inner E[a])``
and E the target's frozen embedding; with ``path_context`` the depth's hidden state ``h_d`` has a
say too: ``v = unit_rms(silu(unit_rms(inner E[a]) + context unit_rms(h_d)))``. What follows a parent
depends on where in the text it stands, and the block knows that. A map of the embedding learns
from far fewer tokens than a free table per parent does; ``out`` starts at zero, so that a fresh
term changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jetflow_core.head.config import HeadConfig
from jetflow_core.head.layers import unit_rms


class PathTerm(nn.Module):
    """Low-rank bias of a child token given its parent token."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.inner = nn.Linear(config.hidden_size, config.path_rank, bias=False)
        self.out = nn.Linear(config.path_rank, config.vocab_size, bias=False)
        nn.init.zeros_(self.out.weight)
        self.context = (
            nn.Linear(config.hidden_size, config.path_rank, bias=False)
            if config.path_context
            else None
        )

    def parent_vectors(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """Vectors of parents in front of a depth.

        Args:
            embeddings: ``[..., hidden]``, the parents' frozen embeddings.
            hidden: the head's rows of the depths that they are parents for, of a shape that
                broadcasts to that of ``embeddings``; read with ``path_context`` only.

        Returns:
            ``[..., rank]``.
        """
        vectors = unit_rms(self.inner(unit_rms(embeddings, self.eps)), self.eps)
        if self.context is None:
            return vectors
        mixed = vectors + self.context(unit_rms(hidden, self.eps))
        return unit_rms(nn.functional.silu(mixed), self.eps)

    def bias(self, parents: Tensor) -> Tensor:
        """Bias ``[..., vocab]`` for every child, from ``parent_vectors``."""
        out: Tensor = self.out(parents)
        return out

    def candidate_bias(self, parents: Tensor, candidates: Tensor) -> Tensor:
        """Bias of candidates only.

        Args:
            parents: ``[..., P, rank]`` from ``parent_vectors``.
            candidates: int64 ``[..., K]`` token ids.

        Returns:
            ``[..., P, K]``.
        """
        return parents @ self.out.weight[candidates].transpose(-1, -2)


def conditional_table(base: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of candidates given each parent candidate, normalised with a rest bucket.

    Args:
        base: ``[..., K]`` log-probabilities of the candidates under the depth's own distribution.
        bias: ``[..., P, K]`` path term.

    Returns:
        ``[..., P, K]``, never above 0. Candidates and the rest bucket sum to one: the rest keeps
        the base's own mass outside the candidates, and the sum is divided out.
    """
    rest = torch.log1p(-base.exp().sum(-1).clamp(max=1.0)).clamp(min=-80.0)
    scores = base.unsqueeze(-2) + bias
    total = torch.logaddexp(scores.logsumexp(-1), rest.unsqueeze(-1).expand(scores.shape[:-1]))
    return (scores - total.unsqueeze(-1)).clamp(max=0.0)
