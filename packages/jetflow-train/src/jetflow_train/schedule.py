"""When a run ends and what the learning rate is until then."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Horizon:
    """The end of a run: a time or a number of steps, exactly one of them.

    With a time, the schedule follows the time trained, so that it completes on any machine.

    Raises:
        ValueError: on construction, if both or neither is given, or it is not above 0.
    """

    minutes: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.minutes is None) == (self.steps is None):
            raise ValueError(
                "give either a time (--max-minutes) or a number of steps (--max-steps), "
                f"got minutes={self.minutes}, steps={self.steps}"
            )
        if not 0 < (self.minutes or self.steps or 0) < math.inf:
            raise ValueError(
                f"the horizon must be above 0: minutes={self.minutes}, steps={self.steps}"
            )

    def progress(self, seconds: float, step: int) -> float:
        """Share of the run that is done, 0 at the start; 1 or more: it is over."""
        if self.minutes is not None:
            return seconds / (60 * self.minutes)
        assert self.steps is not None
        return step / self.steps


def learning_rate_factor(progress: float, warmup: float, floor: float) -> float:
    """Factor of the peak learning rate: linear warm-up, then a cosine down to ``floor``.

    Args:
        progress: from ``Horizon.progress``; clipped to [0, 1].
        warmup: share of the run that warms up.
        floor: factor at the end.
    """
    progress = min(max(progress, 0.0), 1.0)
    if progress < warmup:
        # Never zero, or the first step of a run would do nothing.
        return max(progress / warmup, 0.02)
    done = (progress - warmup) / (1.0 - warmup)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * done))
