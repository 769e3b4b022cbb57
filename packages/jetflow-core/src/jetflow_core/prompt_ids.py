"""Prompts as token ids, whatever holds them."""

from __future__ import annotations

import operator
from collections.abc import Iterable


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
        if isinstance(token, bool):
            raise TypeError
        # Numbers of numpy and torch have it too; numbers with a fraction, and text, do not.
        return operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        raise ValueError(
            f"a prompt holds token ids, which are whole numbers; got {_short(token)}"
        ) from None


def _short(value: object, most: int = 60) -> str:
    shown = repr(value)
    return shown if len(shown) <= most else shown[: most - 3] + "..."
