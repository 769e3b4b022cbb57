"""How far apart the target holds two tokens: one pass of transformers' model in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jetflow_core.loading import load_config, load_model
from jetflow_core.lossless import rounding_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """Two tokens after one text."""

    logit_gap: float
    """Logit of the first less that of the second, in float32."""
    near_tie: bool
    """Whether rounding of one logit to the weights' type could turn it; never in float32."""


class LogitGaps:
    """Computes gaps; the model is loaded when the first one is asked for.

    Args:
        target: folder or hub name.
        dtype: the weights are rounded to it first, as those of the engine are.
        device: where the passes run.
    """

    def __init__(self, target: str, dtype: torch.dtype, device: str) -> None:
        self._target, self._dtype, self._device = target, dtype, device
        self._model: Any = None

    @torch.no_grad()
    def between(self, text: Sequence[int], first: int | None, second: int | None) -> Gap | None:
        """The gap of two tokens after ``text``; None where one of them is none."""
        if first is None or second is None:
            return None
        if self._model is None:
            model = load_model(self._target, load_config(self._target), dtype=self._dtype)
            self._model = model.eval().float().to(self._device)
        row = self._model(torch.tensor([list(text)], device=self._device)).logits[0, -1].float()
        gap = float(row[first] - row[second])
        return Gap(logit_gap=gap, near_tie=abs(gap) <= rounding_of(row, self._dtype))
