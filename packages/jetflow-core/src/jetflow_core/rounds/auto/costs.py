"""Seconds of a round by its requests, its rows and its context, as they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isfinite
from typing import Any, Self

from jetflow_core.limits import MAX_BUDGET

TOTALS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Rows of all trees of a round that may be chosen."""
_LEAST_PER_REQUEST = 2
_LEAN = 4


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Measured seconds of rounds.

    Raises:
        ValueError: a number is missing or out of range; named.
    """

    contexts: tuple[int, ...]
    """One or two numbers of committed rows of a request, ascending."""
    seconds: Mapping[tuple[int, int], tuple[float, ...]]
    """By requests and rows of all their trees: the seconds of a round at each of ``contexts``. As
    many rows as requests is a plain round, without a draft; every number of requests has one."""

    def __post_init__(self) -> None:
        if len(self.contexts) not in (1, 2) or any(b <= a for a, b in pairwise(self.contexts)):
            raise ValueError(f"costs need one or two ascending contexts, got {self.contexts}")
        if any(context < 0 for context in self.contexts):
            raise ValueError(f"a context is at least 0 rows, got {self.contexts}")
        if not self.seconds:
            raise ValueError("costs need at least one measured round")
        for (requests, total), seconds in self.seconds.items():
            where = f"a round of {requests} requests and {total} rows"
            if requests < 1 or total < requests:
                raise ValueError(f"{where} cannot be")
            if (requests, requests) not in self.seconds:
                raise ValueError(f"no plain round of {requests} requests was measured")
            if len(seconds) != len(self.contexts):
                raise ValueError(f"{where} needs {len(self.contexts)} times, has {len(seconds)}")
            if not all(isfinite(value) and value > 0 for value in seconds):
                raise ValueError(f"{where} takes positive seconds, not {seconds}")

    @cached_property
    def requests(self) -> tuple[int, ...]:
        """Numbers of requests that were measured, ascending."""
        return tuple(sorted({requests for requests, _ in self.seconds}))

    def bucket(self, slots: int) -> int:
        """The measured number of requests that stands for so many slots."""
        return next((each for each in self.requests if each >= slots), self.requests[-1])

    def totals(self, requests: int) -> tuple[int, ...]:
        """Rows of trees that were measured for so many requests, plain rounds left out."""
        return tuple(sorted(t for r, t in self.seconds if r == requests and t > r))

    def at(self, requests: int, total: int, context: float) -> float:
        """Seconds of a measured round at any context, by a straight line over the measured ones.

        Raises:
            KeyError: nobody measured such a round.
        """
        first, *more = self.seconds[requests, total]
        if not more:
            return first
        low, high = self.contexts
        # A longer context never makes a round shorter; noise may have said so.
        slope = max(more[0] - first, 0.0) / (high - low)
        return first + slope * max(context - low, 0.0)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; ``of_dict`` reads it."""
        rows = [[*size, *seconds] for size, seconds in sorted(self.seconds.items())]
        return {"contexts": list(self.contexts), "requests_rows_seconds": rows}

    @classmethod
    def of_dict(cls, raw: Any) -> Self:
        """Costs that ``to_dict`` told.

        Raises:
            ValueError: these are none.
        """
        try:
            contexts = tuple(int(each) for each in raw["contexts"])
            seconds = {
                (int(requests), int(total)): tuple(float(value) for value in times)
                for requests, total, *times in raw["requests_rows_seconds"]
            }
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"these are no costs of rounds: {error!r}") from error
        return cls(contexts=contexts, seconds=seconds)


def totals_for(requests: int, *, most: int, most_total: int) -> tuple[int, ...]:
    """Rows of trees that are worth measuring for so many requests.

    Args:
        requests: at least 1.
        most: rows of one tree at most.
        most_total: rows of all trees at most.
    """
    least, last = _LEAST_PER_REQUEST * requests, min(most * requests, most_total)
    return tuple(total for total in TOTALS if least <= total <= last)


def tree_rows_for(requests: int, total: int, *, most: int) -> int:
    """Rows that one tree may have where ``requests`` share ``total`` rows.

    Several times an equal share, so that a request that is sure of its text can take what others
    leave, and so that a round also tells what more rows would promise; a power of two, so that
    there are few.
    """
    if total <= requests:
        return 1
    share = -(-_LEAN * total // requests)
    return min(1 << (share - 1).bit_length(), most, MAX_BUDGET)


def buckets_up_to(requests: int, slots: int, *, factor: int = 2) -> Sequence[int]:
    """Numbers of requests that are measured so that up to so many can be served.

    Args:
        requests: at once, 1 to ``slots``.
        slots: no number is larger.
        factor: between one number and the next.
    """
    found = [1]
    while found[-1] < requests:
        found.append(min(factor * found[-1], slots))
    return found
