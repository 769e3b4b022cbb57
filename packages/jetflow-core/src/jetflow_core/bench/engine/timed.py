"""When rounds start and end, by the host's clock and by events of the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from jetflow_core.rounds.graphs import RoundPrograms
from jetflow_core.rounds.round import RoundSize


def is_round(key: Hashable) -> bool:
    """Whether a program's key is that of a round, not of a prompt."""
    return isinstance(key, tuple) and isinstance(key[0], RoundSize)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceTime:
    """What events say of some rounds in a row."""

    seconds: float
    """From the start of the first to the end of the last."""
    busy: float
    """Seconds inside of the rounds."""
    starved: int
    """Rounds that the host started after the device had ended the one before."""


class TimedPrograms(RoundPrograms):
    """Programs whose rounds are timed without waiting for them.

    Args:
        device: as in ``RoundPrograms``.
        captured: as there.
        slots: as there.
        pages: as there.
        changes: tensors that rounds change and the runner does not know of.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        captured: bool,
        slots: int,
        pages: int,
        changes: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(device, captured=captured, slots=slots, pages=pages)
        self._device, self._more = device, tuple(changes)
        self.restart()

    def restart(self) -> None:
        """Forgets all rounds so far."""
        self.started: float | None = None
        """When the first round was started; what came before it was done then."""
        self._spans: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._starved: list[bool] = []

    def run(self, key: Hashable, program: Callable[[], None], changes: Sequence[Tensor]) -> None:
        """See ``RoundPrograms``."""
        changes = (*changes, *self._more)
        if not is_round(key):
            super().run(key, program, changes)
        elif self._device.type != "cuda":
            self.started = self.started or perf_counter()
            super().run(key, program, changes)
        else:
            self._timed(key, program, changes)

    def _timed(self, key: Hashable, program: Callable[[], None], changes: Sequence[Tensor]) -> None:
        if self.started is None:
            torch.cuda.synchronize(self._device)
            self.started = perf_counter()
        self._starved.append(bool(self._spans) and self._spans[-1][1].query())
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(self._device)
        start.record(stream)
        super().run(key, program, changes)
        end.record(stream)
        self._spans.append((start, end))

    def device_time(self, rounds: int) -> DeviceTime | None:
        """Of the first so many rounds; None where there are no events. Waits for the device."""
        if not self._spans:
            return None
        torch.cuda.synchronize(self._device)
        spans = self._spans[:rounds]
        return DeviceTime(
            seconds=spans[0][0].elapsed_time(spans[-1][1]) / 1e3,
            busy=sum(start.elapsed_time(end) for start, end in spans) / 1e3,
            starved=sum(self._starved[:rounds]),
        )
