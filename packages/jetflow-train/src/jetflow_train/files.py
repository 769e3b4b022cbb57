"""Files that are either whole or absent, and the checksums that prove it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetflow_core.reports.files import OutputError, check_output, write_output


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Call ``write`` with a temporary name beside ``path``, then rename it into place.

    A reader therefore never sees half a file, whenever the writer dies.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {path.parent}: {error.strerror}") from error

    def write_through(temporary: Path) -> None:
        write(temporary)
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())

    write_output(path, write_through)


def check_folder(folder: Path) -> None:
    """Tries whether a folder can be made and written into, and leaves nothing behind.

    Raises:
        OutputError: it cannot, or something else has its name.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise OutputError(f"cannot write into {folder}: {there} is no folder")
    check_output(there / "jetflow-train")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8, atomically."""

    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomic(path, write)
