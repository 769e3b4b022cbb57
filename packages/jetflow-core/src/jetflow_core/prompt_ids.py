"""Prompts as token ids, whatever holds them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex


def prompt_ids(prompt: object) -> tuple[int, ...]:
    """The ids of a prompt as plain integers.

    Args:
        prompt: whole numbers of any type, in a list, an array or a tensor of one axis.

    Raises:
        ValueError: it is text, holds anything else, or cannot be gone through.
    """
    if isinstance(prompt, str | bytes):
        raise ValueError(f"a prompt is a sequence of token ids, got the text {_short(prompt)}")
    if not isinstance(prompt, Iterable):
        raise ValueError(f"a prompt is a sequence of token ids, got {_short(prompt)}")
    return tuple(_whole(token) for token in prompt)


def _whole(token: object) -> int:
    try:
        # Numbers of numpy and torch have it too; numbers with a fraction, and text, do not.
        if isinstance(token, SupportsIndex) and not isinstance(token, bool):
            return operator.index(token)
    except TypeError:
        # A tensor always looks like one; only with a single whole number inside it is one.
        pass
    raise ValueError(f"a prompt holds token ids, which are whole numbers; got {_short(token)}")


def _short(value: object, most: int = 60) -> str:
    shown = repr(value)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
