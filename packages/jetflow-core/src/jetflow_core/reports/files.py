"""JSON files that are either there whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def check_output(path: str | Path) -> Path:
    """The path of a file to be written later, checked now, before the work that fills it.

    Raises:
        ValueError: its folder does not exist or cannot be written, or it is a folder itself.
    """
    file = Path(path)
    folder = file.parent
    if not folder.is_dir():
        raise ValueError(f"cannot write {file}: the folder {folder} does not exist")
    if file.is_dir():
        raise ValueError(f"cannot write {file}: it is a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"cannot write {file}: no permission to write into {folder}")
    return file


def write_json(path: str | Path, payload: Mapping[str, Any]) -> Path:
    """Writes ``payload`` under a temporary name and renames it; returns the path.

    Raises:
        ValueError: see ``check_output``; or a value that JSON does not have (NaN, infinity).
    """
    file = check_output(path)
    text = json.dumps(payload, indent=2, allow_nan=False) + "\n"
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return file


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
