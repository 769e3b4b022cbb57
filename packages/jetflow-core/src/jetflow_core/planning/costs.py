"""What a draft and a verify pass cost on this device: measured at start, followed while running."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray


class StepCosts:
    """Seconds of a step by its size, between measured sizes by straight lines.

    Args:
        sizes: measured sizes, ascending.
        seconds: of each size.

    Raises:
        ValueError: sizes that do not ascend, or a time that is not positive.
    """

    def __init__(self, sizes: Sequence[int], seconds: Sequence[float]) -> None:
        if not sizes or len(sizes) != len(seconds) or any(np.diff(sizes) <= 0):
            raise ValueError(f"sizes must ascend, one time each; got {sizes} and {seconds}")
        if not all(0 < value < float("inf") for value in seconds):
            raise ValueError(f"times must be positive seconds, got {list(seconds)}")
        self._sizes = list(sizes)
        self._seconds = list(seconds)
        self._drift = 1.0

    @property
    def largest(self) -> int:
        """Largest measured size."""
        return self._sizes[-1]

    def at(self, size: int) -> float:
        """Seconds of a step of ``size``; past the largest size, the last slope goes on."""
        return float(self.curve(np.array([size]))[0])

    def curve(self, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Seconds for each of ``sizes``."""
        known = np.interp(sizes, self._sizes, self._seconds)
        if len(self._sizes) > 1:
            run = self._sizes[-1] - self._sizes[-2]
            slope = max(0.0, (self._seconds[-1] - self._seconds[-2]) / run)
            known = known + np.maximum(sizes - self._sizes[-1], 0) * slope
        scaled: NDArray[np.float64] = known * self._drift
        return scaled

    def follow(self, size: int, seconds: float) -> None:
        """Takes one timed step: its neighbourhood moves a little, the whole curve less.

        The context grows and machines change their clock, so a start-up measurement alone would
        go stale; one slow step must not upset the plan either, hence the small weights and the
        bound on how much one step may say.
        """
        ratio = min(max(seconds / self.at(size), 0.5), 2.0)
        self._drift *= ratio**0.02
        near = min(bisect_left(self._sizes, size), len(self._sizes) - 1)
        self._seconds[near] *= ratio**0.05

    def as_dict(self) -> dict[str, list[float]]:
        """Sizes and their present seconds, for reports."""
        return {
            "sizes": [float(size) for size in self._sizes],
            "seconds": [value * self._drift for value in self._seconds],
        }


class LearntCosts(StepCosts):
    """Costs of steps that nobody could try out: a guess, until a few of them were timed.

    Args:
        guess: seconds of a step of any size.
    """

    _TRIALS = 3

    def __init__(self, guess: float) -> None:
        super().__init__([1], [guess])
        self._timed: list[float] = []

    def follow(self, size: int, seconds: float) -> None:
        """Takes one timed step; of the first few the fastest is the cost, as in `measure_steps`."""
        if len(self._timed) >= self._TRIALS:
            super().follow(size, seconds)
            return
        self._timed.append(seconds)
        self._seconds = [min(self._timed)]


def measure_steps(step: Callable[[int], None], sizes: Sequence[int], *, repeats: int) -> StepCosts:
    """Times ``step`` at growing sizes.

    The sizes take turns and the fastest run of each counts, so that a machine that is busy for a
    moment spoils no size; and a size never costs more than a larger one, which could be run in
    its place.

    Args:
        step: does one step of a size and returns when it is done.
        sizes: ascending.
        repeats: timed runs a size, after one that is not timed.

    Returns:
        The measured curve.
    """
    runs = np.empty((repeats + 1, len(sizes)))
    for turn in runs:
        for i, size in enumerate(sizes):
            start = perf_counter()
            step(size)
            turn[i] = perf_counter() - start
    fastest = runs[1:].min(axis=0)
    return StepCosts(sizes, np.minimum.accumulate(fastest[::-1])[::-1].tolist())
