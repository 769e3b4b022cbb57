"""What rounds are expected to give by their rows, from what rounds promised and kept."""

from __future__ import annotations

from math import exp

import numpy as np
from numpy.typing import NDArray

from jetflow_core.rounds.auto.batch_trees import POINTS

_PROMISE_MEMORY, _TRUST_MEMORY = 48.0, 192.0
"""Rounds of a request until what was seen counts a third; of the second, rounds with trees."""
_PRIOR = 4.0


class Outlook:
    """Tokens a request by rows a request, following what is seen.

    A round with trees tells what its trees promised at several sizes, as far as they were grown.
    Between these sizes gains go on in straight lines; behind the last one there are none, so that
    more rows are chosen only once they were seen to promise something.
    """

    def __init__(self) -> None:
        self._gains = np.zeros(len(POINTS))
        self._weights = np.zeros(len(POINTS))
        self._kept = self._promised = 0.0

    @property
    def seen(self) -> bool:
        """Whether any round told anything."""
        return bool(self._weights.any())

    @property
    def trust(self) -> float:
        """Drafted tokens kept over those promised; 1 while little was seen."""
        return (self._kept + _PRIOR) / (self._promised + _PRIOR)

    @property
    def doubt(self) -> float:
        """How much more drafted tokens may be kept in truth than were, as a share of them.

        One standard deviation of a count: it shrinks as more is seen.
        """
        return (self._kept + _PRIOR) ** -0.5

    def tokens(self, rows: float) -> float:
        """Tokens a request of trees with so many rows a request, 1 or more."""
        curve = 1.0 + self.trust * np.cumsum(self._gains)
        return float(np.interp(rows, POINTS, curve))

    def pass_time(self, requests: int) -> None:
        """A round of so many requests was read: what was seen before counts less."""
        self._weights *= exp(-requests / _PROMISE_MEMORY)

    def learn(self, promise: NDArray[np.float64], tree_rows: int, requests: int, kept: int) -> None:
        """Takes in a round with trees.

        Args:
            promise: as ``BatchTrees.promise``.
            tree_rows: rows that one tree could have.
            requests: that took part, at least 1.
            kept: drafted tokens of all of them that the walks kept.
        """
        gains = np.diff(promise[:-1], prepend=1.0).clip(min=0.0)
        gains[0] = 0.0
        told = np.asarray(POINTS) <= tree_rows
        share = requests / (self._weights + requests)
        self._gains += np.where(told, share * (gains - self._gains), 0.0)
        self._weights += np.where(told, requests, 0.0)
        # Plain rounds say nothing of that: a head that boasted would be believed again after them.
        keep = exp(-requests / _TRUST_MEMORY)
        self._kept = keep * self._kept + kept
        self._promised = keep * self._promised + requests * max(float(promise[-1]) - 1.0, 0.0)
