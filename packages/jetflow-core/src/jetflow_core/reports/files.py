"""Output files that are either there whole or not there, and JSON in them."""

from __future__ import annotations

import json
import os
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


class OutputError(ValueError):
    """A file cannot be written; the message names it and says why, in one line."""


def check_output(path: str | Path) -> Path:
    """The place of a file to be written later, tried now, before the work that fills it.

    The temporary file is really made, and removed again: whatever would keep the file from being
    written later shows at once.

    Returns:
        The place itself: where a symbolic link points, not the link.

    Raises:
        OutputError: its folder does not exist or cannot be written, it is a folder itself, or
            something is there that is no regular file.
    """
    with _one_line(path):
        file = _place(path)
        partial = _partial(file)
        try:
            partial.touch(exist_ok=False)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    return file


def write_output(path: str | Path, write: Callable[[Path], None]) -> Path:
    """Lets ``write`` fill a temporary file, with the ending of ``path``, and renames it.

    Returns:
        The place of the file, as ``check_output``.

    Raises:
        OutputError: see ``check_output``; or the disk is full.
    """
    with _one_line(path):
        file = _place(path)
        partial = _partial(file)
        try:
            write(partial)
            partial.replace(file)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    return file


def write_json(path: str | Path, payload: Mapping[str, Any]) -> Path:
    """Writes ``payload`` under a temporary name and renames it; returns the path.

    Raises:
        OutputError: see ``write_output``.
        ValueError: a value that JSON does not have (NaN, infinity).
    """
    text = json.dumps(payload, indent=2, allow_nan=False) + "\n"

    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8")

    return write_output(path, write)


def write_report(path: str | Path, payload: Mapping[str, Any]) -> Path:
    """Writes ``payload`` as ``write_json`` does, with files named and not located.

    A report is handed on; the folders of the machine that wrote it help nobody.
    """
    return write_json(path, {name: without_folders(value) for name, value in payload.items()})


def without_folders(value: Any) -> Any:
    """``value`` with each text in it that is the absolute path of a file cut to the file's name."""
    if isinstance(value, Mapping):
        return {name: without_folders(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_folders(inner) for inner in value]
    if isinstance(value, str) and os.path.isabs(value) and os.path.exists(value):
        return Path(value).name or value
    return value


def _place(path: str | Path) -> Path:
    if str(path).endswith(os.sep) or not str(path):
        raise OutputError(f"cannot write {str(path)!r}: it is a folder, or the name of one")
    # The end of a link: a rename would replace the link itself, or the device behind a name.
    file = Path(os.path.realpath(path))
    if not file.parent.is_dir():
        folder = file.parent if Path(path).parent.is_dir() else Path(path).parent
        raise OutputError(f"cannot write {path}: the folder {folder} does not exist")
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        return file
    if stat.S_ISDIR(mode):
        raise OutputError(f"cannot write {path}: it is a folder")
    if not stat.S_ISREG(mode):
        raise OutputError(f"cannot write {path}: it is no regular file")
    return file


def _partial(file: Path) -> Path:
    # Short whatever the file's own name is, and with its ending, which may choose the format.
    ending = file.suffix if len(file.suffix) <= 16 else ""
    return file.with_name(f".jetflow-{uuid.uuid4().hex[:12]}.partial{ending}")


@contextmanager
def _one_line(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {_short(path)}: {error.strerror or error}") from error


def _short(path: str | Path, most: int = 120) -> str:
    text = str(path)
    return text if len(text) <= most else f"{text[:most]}..."
