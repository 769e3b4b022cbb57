"""Numbers on the command line: no absurd sizes, one line for what is none.

cyclopts alone would cut 4.5 to 4, hand numbers of any length on, and take 1_0 for 10.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

_LARGEST = 2**64 - 1
_DIGITS = 20


class OptionError(Exception):
    """A value of an option is refused; not a ValueError, to which cyclopts would add a prefix."""


def parse_whole(text: str, name: str, least: int = -_LARGEST, most: int = _LARGEST) -> int:
    """The whole number that ``text`` spells in digits, with an optional minus.

    Args:
        text: as the user wrote it.
        name: of the option, for the message.
        least: smallest allowed value.
        most: largest allowed value.

    Raises:
        OptionError: it is none, or out of range.
    """
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    if re.fullmatch(r"-?[0-9]+", text) is None:
        raise OptionError(f"{name} {shown!r} is no whole number")
    digits = text.removeprefix("-").lstrip("0")
    # Before int(), which refuses thousands of digits in words of its own.
    if len(digits) > _DIGITS or not least <= int(text) <= most:
        raise OptionError(f"{name} {shown} is out of range: {_range(least, most)}")
    return int(text)


def parse_real(text: str, name: str) -> float:
    """The number that ``text`` spells: digits, at most one point, an exponent; or inf, nan.

    Raises:
        OptionError: it is none.
    """
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?inf|nan", text.lower()):
        return float(text)
    raise OptionError(f"{name} {text if len(text) <= 40 else f'{text[:37]}...'!r} is no number")


def _real(kind: Any, tokens: Sequence[Token]) -> Any:
    found = [parse_real(token.value, (token.keyword or "value").lstrip("-")) for token in tokens]
    return tuple(found) if "tuple" in str(kind) else found[-1]


def whole(least: int = -_LARGEST, most: int = _LARGEST) -> Parameter:
    """What an option's annotation holds so that only whole numbers in a range are taken."""

    def convert(kind: Any, tokens: Sequence[Token]) -> Any:
        found = [
            parse_whole(token.value, (token.keyword or "value").lstrip("-"), least, most)
            for token in tokens
        ]
        return tuple(found) if "tuple" in str(kind) else found[-1]

    return Parameter(converter=convert, n_tokens=1)


def _range(least: int, most: int) -> str:
    if most == _LARGEST:
        return "too large" if least == -_LARGEST else f"at least {least}"
    return f"{least} to {most}"


Number = Annotated[int, whole()]
"""A whole number whose range the command checks itself."""

Positive = Annotated[int, whole(1)]
"""At least 1."""

REAL = Parameter(converter=_real, n_tokens=1)
"""What the annotation of an option holds that takes a number, or several of them."""

Real = Annotated[float, REAL]
"""A number; its range is checked where it is used."""

Seed = Annotated[int, whole(0)]
"""0 to 2**64 - 1."""

Threads = Annotated[
    int | None, whole(1, 1024), Parameter(help="CPU threads; left out: torch's choice.")
]
