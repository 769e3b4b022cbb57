"""When each phase of a round begins: marks between the steps of a round, inside its graph.

The steps of a round reach it as objects (drafter, stack, steps, imposed picks), and each is put
behind a stand-in here that leaves a mark and passes the call on. On a CUDA device a mark is an
event that becomes part of the captured graph, so it is set at every replay and the host has no
part in it. Elsewhere it is a look at the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from itertools import pairwise
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from jetflow_core.bench.engine.timed import is_round
from jetflow_core.rounds.graphs import RoundPrograms

STATE, HEAD, TREE, VERIFY, PICK, IMPOSED, ACCEPT, COMMIT, ABSORB = (
    "state", "head", "tree", "verify", "pick", "imposed", "accept", "commit", "absorb",
)  # fmt: skip
PHASES = (HEAD, TREE, VERIFY, PICK, IMPOSED, ACCEPT, COMMIT, ABSORB, STATE)


class Marks:
    """The marks of the program that runs, kept for every program.

    Args:
        device: where the rounds run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: dict[Hashable, list[tuple[str, Any]]] = {}
        self._open: list[tuple[str, Any]] | None = None

    def inside(self, key: Hashable, program: Callable[[], None]) -> Callable[[], None]:
        """The program with marks; every run or capture of it replaces those before."""

        def marked() -> None:
            self._open = self._kept[key] = []
            self.begin(STATE)
            try:
                program()
                self.begin("")
            finally:
                self._open = None

        return marked

    def begin(self, phase: str) -> None:
        """The phase begins now; nothing happens outside of a program."""
        if self._open is None:
            return
        if self._device.type != "cuda":
            self._open.append((phase, perf_counter()))
            return
        # External: a replay sets it anew, and the host may ask when that was.
        event = torch.cuda.Event(enable_timing=True, external=True)
        event.record(torch.cuda.current_stream(self._device))
        self._open.append((phase, event))

    def read(self, key: Hashable) -> dict[str, float]:
        """Seconds of each phase in the program's last run, once it is done."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        found = dict.fromkeys(PHASES, 0.0)
        marks = self._kept[key]
        for (phase, start), (_, end) in pairwise(marks):
            found[phase] += end - start if isinstance(start, float) else _between(start, end)
        return found


def _between(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return float(start.elapsed_time(end)) / 1e3


class MarkedPrograms(RoundPrograms):
    """Programs of which every round is marked, waited for and read.

    Args:
        device: as in ``RoundPrograms``.
        captured: as there.
        slots: as there.
        pages: as there.
        marks: shared with the stand-ins.
        changes: tensors that rounds change and the runner does not know of.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        captured: bool,
        slots: int,
        pages: int,
        marks: Marks,
        changes: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(device, captured=captured, slots=slots, pages=pages)
        self._marks, self._more = marks, tuple(changes)
        self.seen: list[dict[str, float]] = []
        """Seconds of each phase, of every round."""

    def run(self, key: Hashable, program: Callable[[], None], changes: Sequence[Tensor]) -> None:
        """See ``RoundPrograms``."""
        if not is_round(key):
            super().run(key, program, changes)
            return
        super().run(key, self._marks.inside(key, program), (*changes, *self._more))
        self.seen.append(self._marks.read(key))


class Marked:
    """Stands in for an object; some of its functions begin a phase when they start or return.

    Args:
        inner: what does the work.
        marks: where marks go.
        starts: phase that begins when a function is called, by its name.
        returns: phase that begins when it returns.
    """

    def __init__(
        self, inner: Any, marks: Marks, starts: dict[str, str], returns: dict[str, str]
    ) -> None:
        self._inner, self._marks, self._starts, self._returns = inner, marks, starts, returns

    def __call__(self, *args: Any) -> Any:
        """The call itself, marked as ``__call__``."""
        return self.__getattr__("__call__")(*args)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._starts and name not in self._returns:
            return found

        @wraps(found)
        def marked(*args: Any, **named: Any) -> Any:
            if name in self._starts:
                self._marks.begin(self._starts[name])
            result = found(*args, **named)
            if name in self._returns:
                self._marks.begin(self._returns[name])
            return result

        return marked
