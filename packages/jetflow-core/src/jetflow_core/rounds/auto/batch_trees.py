"""Trees of one budget for a whole batch: calibrated, shared out, learnt from, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from jetflow_core.rounds.auto.estimates import Acceptance
from jetflow_core.rounds.auto.sharing import best_scores, promised_tokens, shared_counts
from jetflow_core.rounds.results import TreeBatch

POINTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows a request at which a round tells what its trees promise."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BatchTrees:
    """What a round needs to give its trees one budget; tensors that stay where they are."""

    acceptance: Acceptance
    total: Tensor
    """int32 ``[1]``: rows of all trees of the next round; the host writes it."""
    promise: Tensor
    """float64 ``[len(POINTS) + 1]``: what the last round with trees promised, in tokens a request,
    at each of ``POINTS`` times its live requests, and last at the rows that it verified."""
    points: Tensor
    """int64 ``[len(POINTS)]``."""

    @classmethod
    def empty(cls, depth: int, device: torch.device) -> Self:
        """Nothing was seen.

        Args:
            depth: D.
            device: where the tensors are.
        """
        return cls(
            acceptance=Acceptance.empty(depth, device),
            total=torch.ones(1, dtype=torch.int32, device=device),
            promise=torch.zeros(len(POINTS) + 1, dtype=torch.float64, device=device),
            points=torch.tensor(POINTS, device=device),
        )

    @property
    def changes(self) -> tuple[Tensor, ...]:
        """What a round changes for the next one."""
        return (self.acceptance.stated, self.acceptance.picked)

    def counts(self, trees: TreeBatch, live: Tensor, *, deepest: int) -> Tensor:
        """Rows of each tree that are verified, int32 ``[R]``; notes what the trees promise.

        Args:
            trees: of calibrated candidates.
            live: bool ``[R]``.
            deepest: no row is deeper.
        """
        best = best_scores(trees.scores, live)
        rows = torch.cat([self.points * live.sum(), self.total])
        self.promise.copy_(promised_tokens(best, live, rows))
        return shared_counts(trees.scores, trees.depths, live, best, self.total, deepest=deepest)
