"""Ctrl-C and SIGTERM end a run after its step; a second one ends the process at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 75
"""Exit code of a run that was asked to stop and can be resumed (EX_TEMPFAIL)."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Says whether a signal has asked this process to stop since the block was entered.

    After the first signal the next one kills. Outside of the main thread, where Python hands out
    no signals, nothing is changed and the answer is always no.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, _: FrameType | None) -> None:
        asked.append(number)
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    before = {number: signal.signal(number, note) for number in _SIGNALS}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
