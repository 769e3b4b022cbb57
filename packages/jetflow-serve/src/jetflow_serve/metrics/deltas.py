"""What was counted since the last look: Prometheus' counters take increments, boards hold sums."""

from __future__ import annotations

from collections.abc import Mapping

from jetflow_serve.metrics.board import Series


class Deltas:
    """Turns sums into increments."""

    def __init__(self) -> None:
        self._last: dict[Series, float] = {}

    def since(self, sums: Mapping[Series, float]) -> dict[Series, float]:
        """By how much each sum grew since it was given last; those that did not are left out."""
        grown = {
            series: value - self._last.get(series, 0.0)
            for series, value in sums.items()
            if value > self._last.get(series, 0.0)
        }
        self._last.update(sums)
        return grown
