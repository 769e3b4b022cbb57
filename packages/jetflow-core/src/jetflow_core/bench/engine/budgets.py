"""Budgets of an engine benchmark, read from words."""

from __future__ import annotations

from collections.abc import Sequence

from jetflow_core.bench.checks import parse_budgets
from jetflow_core.bench.engine.settings import AUTO

_WORD = "auto"


def engine_budgets(words: Sequence[str], most: int) -> tuple[int, ...]:
    """Budgets, ascending, ``AUTO`` behind them.

    Args:
        words: whole numbers, or ``auto``; with commas between or apart.
        most: the largest number allowed.

    Raises:
        ValueError: a word is neither, or comes twice.
    """
    parts = [part.strip() for word in words for part in word.split(",")]
    chosen = [part for part in parts if part == _WORD]
    if len(chosen) > 1:
        raise ValueError(f"budget {_WORD} comes twice")
    sizes = [part for part in parts if part != _WORD]
    found = parse_budgets(",".join(sizes), most) if sizes or not chosen else ()
    return (*found, *(AUTO for _ in chosen))
