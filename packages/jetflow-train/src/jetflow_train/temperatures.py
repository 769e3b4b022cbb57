"""Which temperatures answers are asked at."""

from __future__ import annotations

from collections.abc import Sequence

COLDEST, HOTTEST = 1e-3, 100.0


def check_temperatures(values: Sequence[float]) -> None:
    """Refuses none, one out of range, and one that comes twice.

    Raises:
        ValueError: naming it.
    """
    if not values:
        raise ValueError("temperatures are missing: give at least one")
    for value in values:
        if not (value == 0 or COLDEST <= value <= HOTTEST):
            raise ValueError(
                f"temperature {value} is out of range: 0 (greedy), or {COLDEST:g} to {HOTTEST:g}"
            )
        if values.count(value) > 1:
            raise ValueError(f"temperature {value:g} comes twice")
