"""Which temperatures answers are asked at, and how figures of each are called."""

from __future__ import annotations

from collections.abc import Sequence

COLDEST, HOTTEST = 1e-3, 100.0


def with_greedy(temperatures: Sequence[float]) -> tuple[float, ...]:
    """Greedy first, then those of ``temperatures`` that are sampled at."""
    return (0.0, *(each for each in temperatures if each != 0))


def answers_name(prompts: str, temperature: float) -> str:
    """The name of a set's answers at ``temperature``: greedy ones have the set's own."""
    return prompts if temperature == 0 else f"{prompts} at {temperature:g}"


def check_temperatures(values: Sequence[float], name: str = "temperature") -> None:
    """Refuses none, one out of range, and one that comes twice; ``name`` is that of one.

    Raises:
        ValueError: naming it.
    """
    if not values:
        raise ValueError(f"{name}s are missing: give at least one")
    for value in values:
        if not (value == 0 or COLDEST <= value <= HOTTEST):
            raise ValueError(
                f"{name} {value} is out of range: 0 (greedy), or {COLDEST:g} to {HOTTEST:g}"
            )
        if values.count(value) > 1:
            raise ValueError(f"{name} {value:g} comes twice")
