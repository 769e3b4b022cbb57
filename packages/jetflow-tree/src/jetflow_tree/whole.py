"""Whole numbers from a caller: an int or numpy integer in a range, or an error that names it."""

from __future__ import annotations

import numpy as np


def is_whole(value: object) -> bool:
    """Whether ``value`` is a whole number by its type; a bool or 2.0 is none."""
    return type(value) is int or isinstance(value, np.integer)


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError, naming the value, unless it is a whole number of at least ``least``."""
    if not is_whole(value) or value < least:
        raise ValueError(f"{name} must be a whole number, at least {least}, got {value!r}")
