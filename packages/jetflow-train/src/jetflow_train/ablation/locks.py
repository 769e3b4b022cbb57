"""Locks between the processes that work on one study; the system frees those of a dead process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jetflow_core.reports.files import OutputError

if sys.platform != "win32":
    import fcntl


@contextmanager
def lock(file: Path) -> Iterator[None]:
    """Holds the lock of ``file``, and waits for it as long as another holds it.

    The file is made and stays: removed, it could be locked by two under one name. Windows has no
    such locks; nothing is locked there.

    Raises:
        OutputError: the file cannot be made, or its file system has no locks.
    """
    with _held(file, wait=True):
        yield


@contextmanager
def try_lock(file: Path) -> Iterator[bool]:
    """Like ``lock``, but says False at once, and holds nothing, where another holds it."""
    with _held(file, wait=False) as mine:
        yield mine


@contextmanager
def _held(file: Path, *, wait: bool) -> Iterator[bool]:
    if sys.platform == "win32":
        yield True
        return
    opened = _opened(file)
    try:
        mine = _taken(file, opened, wait)
        try:
            yield mine
        finally:
            if mine:
                # Closing is not enough where a child process has got the file as well.
                fcntl.flock(opened, fcntl.LOCK_UN)
    finally:
        os.close(opened)


def _opened(file: Path) -> int:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise OutputError(f"cannot make {file}: {error.strerror}") from error


def _taken(file: Path, opened: int, wait: bool) -> bool:
    try:
        fcntl.flock(opened, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise OutputError(f"cannot lock {file}: {error.strerror}") from error
    return True
