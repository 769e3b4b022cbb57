"""No drafter: plain decoding in the same loop."""

from __future__ import annotations

from collections.abc import Sequence

from jetflow_tree import Candidates
from torch import Tensor


class NoDrafter:
    """Proposes nothing, so that every round is a plain step."""

    max_depth = 0

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        """Nothing to forget."""

    def observe(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Nothing to learn."""

    def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Candidates]:
        """Never called: a planner cannot go deeper than ``max_depth``."""
        raise AssertionError("a drafter of depth 0 was asked for a draft")
