"""An evaluation's report as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jetflow_train.evaluation.policies import BASE

_NUMBERS = ("tau", "95 %", "no loops", "rows")
_BESIDE = ("x first", "95 %")


def eval_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """One table for each set and temperature; what is true of the texts stands in its title."""
    several = len(report["heads"]) > 1
    for one in report["sets"]:
        for each in one["temperatures"]:
            # Narrow enough for 80 columns: rich cuts headers that do not fit.
            table = Table(
                title=f"{one['name']}, temperature {each['temperature']:g}: {_texts(each)}",
                title_justify="left",
                box=SIMPLE_HEAD,
                pad_edge=False,
                padding=(0, 1, 0, 0),
            )
            table.add_column("head, trees", no_wrap=True)
            for name in (*_NUMBERS, *(_BESIDE if several else ())):
                table.add_column(name, justify="right", no_wrap=True)
            for row in each["rows"]:
                beside = _beside(row) if several else []
                table.add_row(_name(row, several=several), *_cells(row), *beside)
            yield table


def _texts(each: Mapping[str, Any]) -> str:
    return (
        f"{each['answers']} answers, {each['cut_by_length']} cut by length, "
        f"{each['loop_share']:.0%} loops, prompt lookup {each['prompt_lookup']['tau']:.2f}"
    )


def _name(row: Mapping[str, Any], *, several: bool) -> str:
    words = [row["head"]] if several else []
    if row["candidates"] == BASE:
        words.append(BASE)
    return " ".join([*words, row["policy"]])


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['tau']:.2f}",
        _range(row["tau_interval"]),
        f"{row['tau_without_loops']:.2f}",
        f"{row['rows_per_round']:.1f}",
    ]


def _beside(row: Mapping[str, Any]) -> list[str]:
    ratio = row["ratio_to_first"]
    return ["", ""] if ratio is None else [f"{ratio['ratio']:.2f}", _range(ratio["interval"])]


def _range(ends: list[float]) -> str:
    return f"{ends[0]:.2f}-{ends[1]:.2f}"
