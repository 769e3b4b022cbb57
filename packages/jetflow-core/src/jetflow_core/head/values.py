"""Typed readers of what a head's JSON files hold: each value is what it must be, or is refused.

JSON has one kind of number and Python takes a bool for one, and a string for a list of strings;
``int()``, ``bool()`` or ``tuple()`` on a value of the wrong kind gives something else, silently.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from reprlib import Repr
from typing import Any

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxtuple = 12


class HeadConfigError(ValueError):
    """A head's description is impossible or asks for something this package does not run."""


def shown(value: object) -> str:
    """``value`` as a message quotes it: cut short where it is long or deep."""
    return _SHORT.repr(value)


def whole(name: str, value: object, least: int, most: int) -> int:
    """``value`` if it is a whole number in ``least..most``.

    Raises:
        HeadConfigError: it is none (a bool or 3.0 is none), or is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise HeadConfigError(f"{name} must be a whole number {least}..{most}, got {shown(value)}")
    return value


def real(name: str, value: object, least: float, most: float) -> float:
    """``value`` as a float if it is a number in ``least..most``.

    Raises:
        HeadConfigError: it is no number, not finite, or out of range.
    """
    # Compared before it becomes a float: JSON's whole numbers may be larger than any float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise HeadConfigError(f"{name} must be a number {least}..{most}, got {shown(value)}")
    return float(value)


def positive(name: str, value: object, most: float = math.inf) -> float:
    """``value`` as a float if it is a finite number above 0 and at most ``most``.

    Raises:
        HeadConfigError: it is none.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= min(most, _LARGEST)
    ):
        limit = "finite" if most == math.inf else f"at most {most}"
        raise HeadConfigError(f"{name} must be a number above 0 and {limit}, got {shown(value)}")
    return float(value)


_LARGEST = 1.7976931348623157e308


def flag(name: str, value: object) -> bool:
    """``value`` if it is true or false; no string and no number stands for one.

    Raises:
        HeadConfigError: it is something else.
    """
    if not isinstance(value, bool):
        raise HeadConfigError(f"{name} must be true or false, got {shown(value)}")
    return value


def text(name: str, value: object) -> str:
    """``value`` if it is a string.

    Raises:
        HeadConfigError: it is something else.
    """
    if not isinstance(value, str):
        raise HeadConfigError(f"{name} must be a string, got {shown(value)}")
    return value


def listed(name: str, value: object) -> tuple[Any, ...]:
    """The elements of ``value``, a list (or a tuple); a string is no list.

    Raises:
        HeadConfigError: it is something else.
    """
    if not isinstance(value, list | tuple):
        raise HeadConfigError(f"{name} must be a list, got {shown(value)}")
    return tuple(value)


def mapping(name: str, value: object) -> Mapping[str, Any]:
    """``value`` if it is a mapping with names as keys.

    Raises:
        HeadConfigError: it is something else.
    """
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise HeadConfigError(f"{name} must be a mapping, got {shown(value)}")
    return value


def known_keys(name: str, section: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Refuses a section with keys that nobody here reads.

    Raises:
        HeadConfigError: naming the keys and the allowed ones.
    """
    unknown = sorted(section.keys() - set(allowed))
    if unknown:
        raise HeadConfigError(
            f"{name} holds {', '.join(map(shown, unknown[:8]))}, unknown here; "
            f"allowed are {', '.join(sorted(allowed))}"
        )
