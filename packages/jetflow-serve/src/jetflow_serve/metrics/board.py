"""Numbers that one process writes and another reads: a small file that both have in memory.

vLLM's model runs in another process than its server, and what travels between them has no place for
counters of ours. So the worker writes its sums into a file that it maps, which costs no call; the
server maps the same file and reads them when vLLM reports a step.
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Self

import numpy as np

_WORD = 8
_MOST_HEADER = 1 << 20


@dataclass(frozen=True, order=True, slots=True)
class Series:
    """One number of a metric."""

    metric: str
    labels: tuple[str, ...] = ()
    """Values of the metric's labels, in their order; of a histogram the value that was seen."""


def board_file(instance: str, part: str, rank: int) -> Path:
    """Where a part of an engine writes.

    Args:
        instance: names this start of the engine, in all its processes alike.
        part: of the engine.
        rank: of the engine among its replicas.
    """
    return Path(tempfile.gettempdir()) / f"jetflow-{instance}-{part}-{rank}"


class Board:
    """Sums and gauges by series.

    The file tells its own series, so readers need not know them. A reader may see the sums of one
    step partly written; the next reading has the rest.
    """

    def __init__(self, file: Path, series: tuple[Series, ...], memory: mmap.mmap) -> None:
        self.file, self.series = file, series
        self._places = {each: place for place, each in enumerate(series)}
        count = len(series)
        offset = len(memory) - _WORD * count
        self._values = np.frombuffer(memory, dtype=np.float64, count=count, offset=offset)

    @classmethod
    def create(cls, file: Path, series: Iterable[Series]) -> Self:
        """A new file in which every series is 0; only this user can read it.

        Raises:
            FileExistsError: there is such a file.
        """
        ordered = tuple(series)
        header = json.dumps([[each.metric, *each.labels] for each in ordered]).encode()
        start = _WORD * (1 + -(-len(header) // _WORD))
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.ftruncate(handle, start + _WORD * max(len(ordered), 1))
            memory = mmap.mmap(handle, start + _WORD * len(ordered))
        finally:
            os.close(handle)
        memory[_WORD : _WORD + len(header)] = header
        # The length last: whoever sees it sees the whole header.
        memory[:_WORD] = len(header).to_bytes(_WORD, "little")
        return cls(file, ordered, memory)

    @classmethod
    def open(cls, file: Path) -> Self | None:
        """The board in a file; None where there is none yet, or it is another user's."""
        try:
            handle = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            if os.fstat(handle).st_uid != os.getuid():
                return None
            memory = mmap.mmap(handle, 0)
        except (OSError, ValueError):
            return None
        finally:
            os.close(handle)
        length = int.from_bytes(memory[:_WORD], "little")
        if not 0 < length < _MOST_HEADER:
            return None
        raw = json.loads(memory[_WORD : _WORD + length])
        return cls(file, tuple(Series(name, tuple(labels)) for name, *labels in raw), memory)

    def post(self, values: Mapping[Series, float]) -> None:
        """Writes the newest values of some series.

        Raises:
            KeyError: a series is none of this board's.
        """
        for series, value in values.items():
            self._values[self._places[series]] = value

    def read(self) -> dict[Series, float]:
        """The newest value of every series."""
        return dict(zip(self.series, self._values.tolist(), strict=True))

    def unlink_at_exit(self) -> None:
        """Has the file removed when this process ends, unless it is killed."""
        # Not atexit: processes that multiprocessing started do not run that.
        Finalize(None, _remove, (self.file,), exitpriority=0)

    def unlink(self) -> None:
        """Removes the file; who has it in memory goes on."""
        _remove(self.file)


def _remove(file: Path) -> None:
    file.unlink(missing_ok=True)
