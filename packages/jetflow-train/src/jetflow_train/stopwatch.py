"""Seconds of training, without what is no training."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Counts on from ``seconds`` once it is started, and stands still while paused."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def start(self) -> None:
        """Count from now on; one that runs already goes on."""
        if self._since is None:
            self._since = time.monotonic()

    @property
    def running(self) -> bool:
        """Whether it counts."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """What is counted so far."""
        running = 0.0 if self._since is None else time.monotonic() - self._since
        return self._seconds + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside of this does not count."""
        running = self.running
        self._seconds, self._since = self.seconds, None
        try:
            yield
        finally:
            if running:
                self.start()
