"""Acceptance that follows each round's own trees, for budgets that change from round to round."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jetflow_core.bench.engine.imposed import ImposedAcceptance, ImposedScores
from jetflow_core.rounds import TreeBatch


class ImposedOnTrees(ImposedAcceptance):
    """An ``ImposedPicks`` whose distribution is scaled by what each tree holds at each depth.

    ``restart`` takes, instead of probabilities, those of ``HeadModel.per_mass``: times the mass of
    a tree's nodes at a depth, by the table's own scores, they are the chance to come so deep. Of a
    tree of a fixed budget that is what ``HeadModel.at_least`` says of the budget. What the engine
    makes of the scores changes which trees it grows, and nothing of what they are worth.

    Args:
        scores: proposes for the trees.
        sizes: as in ``ImposedAcceptance``.
    """

    def __init__(self, scores: ImposedScores, **sizes: Any) -> None:
        super().__init__(**sizes)
        self._table = scores
        self._places = torch.ones(self.wanted.shape, dtype=torch.float64, device=self._turn.device)
        self._per_mass = torch.zeros(scores.depth, dtype=torch.float64, device=self._turn.device)

    def _keep(self, places: NDArray[np.float64], at_least: NDArray[np.float64]) -> None:
        self._places.copy_(torch.from_numpy(places))
        self._per_mass.copy_(torch.from_numpy(at_least))

    def _scores(self, trees: TreeBatch) -> Tensor:
        # A round without a draft has nothing to score.
        return self._table.of_rows(trees) if trees.tokens.shape[1] > 1 else trees.scores

    def _lengths(
        self, turn: Tensor, requests: int, scores: Tensor, depths: Tensor, inside: Tensor
    ) -> Tensor:
        levels = torch.arange(1, self._per_mass.shape[0] + 1, device=depths.device)
        here = (depths[..., None] == levels) & inside[..., None]
        mass = torch.where(here, scores.exp()[..., None], 0.0).sum(1)
        at_least = (mass * self._per_mass).clamp(max=1.0).cummin(1).values
        place = self._places[:requests].index_select(1, turn)
        return (place < at_least).sum(1, keepdim=True)
