"""Reports as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

_TAU_COLUMNS = ("tau", "95 %", "no loops", "loops", "lookup", "rows")
_SPEED_COLUMNS = ("tokens/s", "x plain", "repeats", "ms/round", "break-even tau")


def decode_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Two tables a prompt set of a decode report: acceptance, and speed if it was measured."""
    for one in report["sets"]:
        title = f"{one['name']}, {one['prompts']} prompts"
        table = _table(f"{title}: tokens a round", "configuration", _TAU_COLUMNS)
        for row in one["rows"]:
            table.add_row(row["name"], *_tau_cells(row))
        yield table
        if report["mode"] == "timed":
            table = _table(f"{title}: speed", "configuration", _SPEED_COLUMNS)
            for row in one["rows"]:
                table.add_row(row["name"], *_speed_cells(row["speed"]))
            yield table


def _table(title: str, first: str, numbers: Sequence[str]) -> Table:
    # Narrow enough for 80 columns: rich cuts headers that do not fit.
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column(first, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _tau_cells(row: Mapping[str, Any]) -> list[str]:
    low, high = row["tau_interval"]
    return [
        f"{row['tau']:.2f}",
        f"{low:.2f}-{high:.2f}",
        f"{row['tau_without_loops']:.2f}",
        f"{row['loop_share']:.0%}",
        f"{row['prompt_lookup']['tau']:.2f}",
        f"{row['rows_per_round']:.1f}",
    ]


def _speed_cells(speed: Mapping[str, Any]) -> list[str]:
    ratio = speed["ratio_to_plain"]
    own = [f"{speed['tokens_per_second']:.1f}"]
    each = f"{1e3 * speed['seconds_per_round']:.2f}"
    if ratio is None:
        return [*own, "", "", each, ""]
    spread = f"{ratio['min']:.2f}-{ratio['max']:.2f}"
    return [*own, f"{ratio['median']:.2f}", spread, each, f"{speed['break_even_tau']:.2f}"]


def lossless_table(report: Mapping[str, Any]) -> Table:
    """The cells of a lossless report."""
    title = "answers that differ from transformers' greedy generate"
    names = ("budget", "answers", "different", "tau", "rounds that moved rows")
    table = _table(title, "drafter", names)
    for cell in report["cells"]:
        table.add_row(
            cell["drafter"],
            str(cell["budget"]),
            str(cell["answers"]),
            str(cell["different"]),
            f"{cell['tau']:.2f}",
            str(cell["scattered_rounds"]),
        )
    return table


def lossless_lines(report: Mapping[str, Any], most: int = 10) -> Iterator[str]:
    """The verdict, and the first differences."""
    count = report["answers_different"]
    dtype = report["settings"]["dtype"]
    yield (
        f"{report['answers_compared']} answers, {report['tokens_compared']} tokens in {dtype}: "
        + ("all identical" if not count else f"{count} answers differ")
    )
    for found in report["differences"][:most]:
        gap = "" if found["logit_gap"] is None else f", logit gap {found['logit_gap']:.3g}"
        yield (
            f"{found['set_name']} {found['prompt']}, {found['drafter']} at budget "
            f"{found['budget']}: token {found['position']} is {found['found']}, plain "
            f"{found['expected']}{gap}"
        )


def _microseconds(value: float) -> str:
    # A slow moment must not push another column out of a narrow terminal.
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def tree_table(report: Mapping[str, Any]) -> Table:
    """The builders' times of a tree report."""
    title = "microseconds a tree, and their ratio to a plain Python heap of the same run"
    table = _table(title, "candidates, builder", ("budget", "nodes", "median", "min", "ratio"))
    for row in report["rows"]:
        table.add_row(
            f"{row['table']}, {row['builder']}",
            str(row["budget"]),
            str(row["nodes"]),
            _microseconds(row["median_us"]),
            _microseconds(row["min_us"]),
            f"{row['ratio']:.2f}",
        )
    return table
