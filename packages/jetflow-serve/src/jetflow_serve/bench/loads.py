"""What a server is loaded with: requests in flight at a time, or requests a second."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jetflow_core.commands.numbers import OptionError, parse_real, parse_whole

MOST_IN_FLIGHT = 65536
_FOR_EACH_PLACE = 4
_SECONDS_OF_A_RATE = 30


@dataclass(frozen=True, slots=True)
class Load:
    """One load."""

    kind: Literal["batch", "rate"]
    value: float
    """Requests in flight at a time, or requests a second."""
    requests: int
    """How many are sent in all."""

    @property
    def name(self) -> str:
        """Unique in a run, as in "batch 4" or "rate 2.5"."""
        return f"{self.kind} {self.value:g}"


def parse_batches(text: str) -> tuple[int, ...]:
    """Batches of a list like "1,4,16", ascending; an empty text holds none.

    Raises:
        ValueError: an entry is no whole number of at least 1, or comes twice.
    """
    found = []
    for word in _words(text):
        try:
            found.append(parse_whole(word, "batch", 1, MOST_IN_FLIGHT))
        except OptionError as error:
            raise ValueError(f"{error}; batches are whole numbers with commas between") from None
    _refuse_twice(found, "batch")
    return tuple(sorted(found))


def parse_rates(text: str) -> tuple[float, ...]:
    """Requests a second of a list like "0.5,2,8", ascending; an empty text holds none.

    Raises:
        ValueError: an entry is no number above 0, is infinite, or comes twice.
    """
    found = []
    for word in _words(text):
        try:
            rate = parse_real(word, "rate")
        except OptionError as error:
            raise ValueError(f"{error}; rates are numbers with commas between") from None
        if not 0 < rate < math.inf:
            raise ValueError(f"rate {word} is out of range: above 0, and finite")
        found.append(rate)
    _refuse_twice(found, "rate")
    return tuple(sorted(found))


def plan_loads(
    batches: Sequence[int], rates: Sequence[float], requests: int | None, prompts: int
) -> list[Load]:
    """The loads of a run, batches first.

    Args:
        batches: requests in flight at a time.
        rates: requests a second.
        requests: sent under each load; None: each prompt once, and at least four for each place of
            a batch or 30 seconds of a rate, so that the ends of a load weigh little.
        prompts: how many different ones there are.
    """
    return [
        *(
            Load("batch", batch, requests or max(prompts, _FOR_EACH_PLACE * batch))
            for batch in batches
        ),
        *(
            Load("rate", rate, requests or max(prompts, math.ceil(_SECONDS_OF_A_RATE * rate)))
            for rate in rates
        ),
    ]


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")] if text.strip() else []


def _refuse_twice(values: Sequence[float], what: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{what} {value:g} comes twice")
