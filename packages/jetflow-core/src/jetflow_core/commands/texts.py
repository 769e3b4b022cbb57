"""Prompts as a user gives them: text, and not empty."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def checked_prompts(texts: Sequence[str]) -> tuple[str, ...]:
    """The prompts, each of which holds something.

    Raises:
        ValueError: one is empty; its number is named where there are several.
    """
    for number, text in enumerate(texts, start=1):
        if not text:
            which = f"prompt {number}" if len(texts) > 1 else "the prompt"
            raise ValueError(f"{which} is empty: it holds no token")
    return tuple(texts)


def read_stdin() -> str:
    """All that standard input holds.

    Raises:
        ValueError: its bytes are not UTF-8.
    """
    try:
        text = sys.stdin.read()
        # Under some locales Python lets wrong bytes through, as characters that are none.
        text.encode("utf-8")
    except UnicodeError as error:
        raise ValueError("what stdin holds is no text: its bytes are not UTF-8") from error
    return text
