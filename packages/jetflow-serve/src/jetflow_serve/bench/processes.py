"""Processes of the benchmark: Python modules that write into a log and are stopped with care."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_SECONDS_TO_STOP = 60
_MOST_OF_A_LOG = 20_000


class Process(Protocol):
    """A running process."""

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    def stop(self) -> None:
        """Ends it, and what it started, if it still runs; returns once it is gone."""


Start = Callable[[str, Sequence[str], Path], Process]
"""Starts a module with arguments; all that it prints goes into the file."""


class ProcessFailed(Exception):
    """A server or a client failed; the text says how.

    Args:
        what: one line.
        log: what the process printed.
    """

    def __init__(self, what: str, log: Path) -> None:
        super().__init__(what)
        self.log = log
        self.log_end = log_end(log)


class ModuleProcess:
    """A Python module in a process of its own.

    Args:
        module: as after ``python -m``.
        arguments: of its command line.
        log: written anew.
    """

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        with log.open("wb") as output:
            # A session of its own: what it starts is found again, and Ctrl-C reaches us alone.
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def stop(self) -> None:
        """Asks it to end, and kills what is left of its group after a while."""
        try:
            if self._process.poll() is None:
                self._process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_SECONDS_TO_STOP)
        finally:
            # Also when the user does not want to wait any longer.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def log_end(log: Path, lines: int = 25) -> str:
    """The last lines of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _MOST_OF_A_LOG))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    return "\n".join(text.rstrip().splitlines()[-lines:])
