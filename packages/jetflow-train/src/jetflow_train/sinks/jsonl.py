"""The metrics file of every run: one JSON object a line."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class JsonLines:
    """Appends a line a write and closes the file each time: a run that dies loses none.

    Args:
        path: the file; its folder is made with the first line.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Appends ``values`` with ``step`` first; numbers that JSON does not have become null."""
        line = json.dumps(_plain({"step": step, **values}), allow_nan=False)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(line + "\n")

    def close(self) -> None:
        """Nothing is open."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The entries of a metrics file, each step once for each ``kind`` of entry.

    A run that was killed and resumed writes the steps after its last state again; the later entry
    counts. A last line that was cut off is left out.

    Raises:
        ValueError: the file cannot be read, or another line is no JSON object; named.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ValueError(f"cannot read the metrics of {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8") from error
    entries: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            step = int(entry["step"])
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}:{number} is no entry of a run") from error
        if entries and entries[-1]["step"] >= step:
            # What follows a state that was gone back to is no part of the run.
            place, kind = (step, True), entry.get("kind")
            entries = [e for e in entries if (e["step"], e.get("kind") == kind) < place]
        entries.append(entry)
    return entries


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
