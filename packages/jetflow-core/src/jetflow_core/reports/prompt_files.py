"""Prompt files: JSONL, each line an object with a text under ``prompt``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One prompt of a file."""

    name: str
    """Its ``id`` in the file, else its line."""
    text: str


def read_prompt_file(path: str | Path, limit: int | None = None) -> tuple[PromptLine, ...]:
    """The prompts of a file in their order; empty lines are passed over.

    Args:
        path: a JSONL file in UTF-8.
        limit: most prompts, the first ones; None: all. Lines behind the last one are not read.

    Raises:
        ValueError: the file cannot be read, holds no prompt, or a line is not of this form; file
            and line are named.
    """
    try:
        # Not splitlines: JSON strings may hold line separators that it would split at.
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"cannot read the prompts of {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"cannot read the prompts of {path}: it is not UTF-8") from error
    written = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    found = tuple(_parse(line, number, f"{path}:{number}") for number, line in written[:limit])
    if not found:
        raise ValueError(f"{path} holds no prompts")
    return found


def _parse(line: str, number: int, where: str) -> PromptLine:
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: line {number}: not JSON ({_reason(error)})") from error
    text = record.get("prompt") if isinstance(record, dict) else None
    if not isinstance(text, str) or not text:
        raise ValueError(f'{where}: line {number}: needs an object with a text under "prompt"')
    name = record.get("id", f"line {number}")
    for what, value in (("prompt", text), ("id", str(name))):
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise ValueError(f"{where}: line {number}: its {what} holds half a character, \\ud8..")
    return PromptLine(str(name), text)


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    return "nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
