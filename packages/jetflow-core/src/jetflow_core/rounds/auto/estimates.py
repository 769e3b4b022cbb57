"""What the scores of a head are worth: acceptance by depth and rank, followed on the device.

For every node on a walk, each child that the tree held was stated to be next with some probability,
and one of them was picked or none. Sums of what was stated and of what was picked, by the child's
depth and rank, say how far the statements can be believed. Older rounds weigh less and less. Where
little was seen the depth as a whole speaks, and where that was seen little the head itself: its
statements are the prior.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from jetflow_core.rounds.results import TreeBatch

RANKS = 16
"""Ranks that are told apart; further ones count as the last."""
HALF_LIFE = 512.0
"""Rounds of a request until what it showed counts half."""
PRIOR = 4.0
"""Picks that the prior counts as."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Acceptance:
    """Sums by depth and rank, float64 ``[D, RANKS]``, on the device."""

    stated: Tensor
    """Probabilities of the children that were offered."""
    picked: Tensor
    """How many of them the target picked."""

    @classmethod
    def empty(cls, depth: int, device: torch.device) -> Self:
        """Nothing was seen: the head is believed.

        Args:
            depth: D.
            device: where the sums are.
        """
        shape = (depth, RANKS)
        return cls(
            stated=torch.zeros(shape, dtype=torch.float64, device=device),
            picked=torch.zeros(shape, dtype=torch.float64, device=device),
        )

    def forget(self) -> None:
        """Nothing was seen."""
        self.stated.zero_()
        self.picked.zero_()

    def ratios(self) -> Tensor:
        """What a stated probability is to be multiplied by, float64 ``[D, RANKS]``, above 0."""
        whole = (self.picked.sum(1, keepdim=True) + PRIOR) / (
            self.stated.sum(1, keepdim=True) + PRIOR
        )
        return (self.picked + PRIOR * whole) / (self.stated + PRIOR)

    def calibrated(self, log_probs: Tensor) -> Tensor:
        """Candidates' scores as far as they can be believed.

        Args:
            log_probs: ``[R, D, P, K]``, the head's own.

        Returns:
            float64 ``[R, D, P, K]``; no row sums to more than 1. What is no probability stays so.
        """
        ranks = torch.arange(log_probs.shape[3], device=log_probs.device).clamp(max=RANKS - 1)
        change = self.ratios()[: log_probs.shape[1], ranks].log()
        wide = log_probs.double()
        changed = wide + change[:, None]
        # Rows without a candidate, and what is out of contract, are left to the tree's own check.
        excess = changed.logsumexp(-1, keepdim=True).clamp(min=0.0)
        return torch.where(wide > 0, wide, (changed - excess).clamp(max=0.0))

    def learn(
        self, tokens: Tensor, log_probs: Tensor, trees: TreeBatch, counts: Tensor, path: Tensor
    ) -> None:
        """Takes in one round.

        Args:
            tokens: int32 ``[R, D, K]``, the candidates.
            log_probs: ``[R, D, P, K]``, the head's own scores of them.
            trees: grown from them.
            counts: int32 ``[R]``: rows of each tree that were verified; 0: not live.
            path: int32 ``[R, S]``: rows of each walk, the root's first, -1 behind its end.
        """
        offered = _offered(tokens, log_probs, trees, counts, path)
        keep = torch.pow(0.5 ** (1.0 / HALF_LIFE), (counts > 0).sum())
        for sums, seen in zip((self.stated, self.picked), offered, strict=True):
            ranks = torch.arange(seen.shape[1], device=seen.device).clamp(max=RANKS - 1)
            sums.mul_(keep)
            sums[: seen.shape[0]].scatter_add_(1, ranks.expand_as(seen), seen)


def _offered(
    tokens: Tensor, log_probs: Tensor, trees: TreeBatch, counts: Tensor, path: Tensor
) -> tuple[Tensor, Tensor]:
    """Stated probabilities and picks of the children of walked rows, float64 ``[D, K]`` each."""
    requests, depth, width = tokens.shape
    rows = torch.arange(trees.tokens.shape[1], device=tokens.device)
    inside = (rows < counts[:, None]) & (rows > 0)
    parents = trees.parents.long().clamp(min=0)
    level = (trees.depths.long() - 1).clamp(0, depth - 1)
    at = level[..., None].expand(-1, -1, width)
    candidate = (tokens.gather(1, at) == trees.tokens[..., None]).int().argmax(2)
    above = candidate.gather(1, parents).masked_fill(trees.depths <= 1, 0)
    flat = (level * log_probs.shape[2] + above.clamp(max=log_probs.shape[2] - 1)) * width
    stated = log_probs.flatten(1).gather(1, flat + candidate).double().exp()
    walked = torch.zeros_like(inside).scatter_(1, path.long().clamp(min=0), True)
    walked &= counts[:, None] > 0
    # A walk has one row a depth, so every place is written once; what is not offered goes behind.
    behind = depth * width
    place = (level * width + candidate).masked_fill(~(inside & walked.gather(1, parents)), behind)
    found = []
    for values in (stated, (walked & inside).double()):
        placed = torch.zeros(requests, behind + 1, dtype=torch.float64, device=tokens.device)
        found.append(placed.scatter_(1, place, values)[:, :behind].sum(0).view(depth, width))
    return found[0], found[1]
