"""How many rows the trees of the next round get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jetflow_core.limits import MAX_BUDGET


class Budgets(Protocol):
    """Decides the budget of every live request before a round."""

    @property
    def most(self) -> int:
        """No budget is ever larger."""

    def share(self, requests: Sequence[int]) -> Sequence[int]:
        """A budget for each of these requests (places in the list), root included."""


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """The same for every request and round; 1 is plain decoding.

    Raises:
        ValueError: it is out of range.
    """

    rows: int

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= MAX_BUDGET:
            raise ValueError(f"budget {self.rows} is out of range: 1 to {MAX_BUDGET}")

    @property
    def most(self) -> int:
        """The budget."""
        return self.rows

    def share(self, requests: Sequence[int]) -> Sequence[int]:
        """The budget for each."""
        return [self.rows] * len(requests)
