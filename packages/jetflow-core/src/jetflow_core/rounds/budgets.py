"""How many rows the trees of the next round get."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from jetflow_core.limits import MAX_BUDGET


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveBatch:
    """Who takes part in the next round."""

    requests: tuple[int, ...]
    """Their places in the list of requests, at least one."""
    slots: int
    """Slots that the round computes: the highest one in use, plus 1."""
    context: float
    """Committed rows of a request as far as rounds have been read, the mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Rows of the next round's trees, roots included."""

    rows: tuple[int, ...]
    """Most rows of each request's tree, 1 or more."""
    total: int
    """Rows of all trees together. Where it is less than the sum of ``rows`` the trees keep their
    likeliest rows, whoever they belong to; only ``AutoBudget`` may ask for that."""


class Budgets(Protocol):
    """Decides the budget of every live request before a round."""

    @property
    def most(self) -> int:
        """No budget is ever larger."""

    def share(self, batch: LiveBatch) -> Shares:
        """Rows for each of these requests."""


@dataclass(frozen=True, slots=True)
class FixedBudget:
    """The same for every request and round; 1 is plain decoding.

    Raises:
        ValueError: it is out of range.
    """

    rows: int

    def __post_init__(self) -> None:
        check_budget(self.rows)

    @property
    def most(self) -> int:
        """The budget."""
        return self.rows

    def share(self, batch: LiveBatch) -> Shares:
        """The budget for each."""
        count = len(batch.requests)
        return Shares(rows=(self.rows,) * count, total=self.rows * count)


def check_budget(rows: int) -> None:
    """Refuses rows that no tree can have.

    Raises:
        ValueError: naming them and the range.
    """
    if not 1 <= rows <= MAX_BUDGET:
        raise ValueError(f"budget {rows} is out of range: 1 to {MAX_BUDGET}")
