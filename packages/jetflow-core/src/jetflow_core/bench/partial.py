"""Finished parts of a long run, kept so that the same command goes on after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jetflow_core.reports.files import check_output, write_json


class Partial:
    """A file beside the report that holds what is finished.

    Args:
        report: where the report will be; None keeps everything in memory.
        settings: what makes two runs the same, plain values.

    Raises:
        ValueError: the file is there but of another run, or broken.
    """

    def __init__(self, report: Path | None, settings: dict[str, Any]) -> None:
        self._file = None if report is None else report.with_name(report.name + ".partial")
        # Through JSON once, so that tuples compare equal to what a file gives back.
        self._settings: dict[str, Any] = json.loads(json.dumps(settings))
        # Each part is one string of JSON: a number a line would make the file many times as long.
        self._parts: dict[str, str] = {}
        if self._file is not None:
            check_output(self._file)
            if self._file.exists():
                self._parts = self._read(self._file)

    def _read(self, file: Path) -> dict[str, str]:
        advice = "delete it, or choose another --out"
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            settings, parts = raw["settings"], raw["parts"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{file} is no unfinished run of this command; {advice}") from error
        if not isinstance(settings, dict) or not _are_texts(parts):
            raise ValueError(f"{file} is no unfinished run of this command; {advice}")
        for name, value in self._settings.items():
            if settings.get(name) != value:
                raise ValueError(
                    f"{file} is an unfinished run with {name} = {settings.get(name)!r}, "
                    f"now it is {value!r}; {advice}"
                )
        return dict(parts)

    @property
    def file(self) -> Path | None:
        """Where the parts are kept."""
        return self._file

    def get(self, name: str) -> Any | None:
        """A finished part; None if it is not."""
        kept = self._parts.get(name)
        return None if kept is None else json.loads(kept)

    def put(self, name: str, part: Any) -> None:
        """Keeps a part; the file is replaced whole."""
        self._parts[name] = json.dumps(part)
        if self._file is not None:
            write_json(self._file, {"settings": self._settings, "parts": self._parts})

    def remove(self) -> None:
        """Deletes the file; the report is written."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


def _are_texts(parts: Any) -> bool:
    return isinstance(parts, dict) and all(isinstance(part, str) for part in parts.values())
