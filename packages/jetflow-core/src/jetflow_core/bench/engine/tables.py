"""Reports of the engine as tables for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from jetflow_core.bench.engine.marks import PHASES
from jetflow_core.bench.engine.schema import IMPOSED

_SPEED = ("rows", "tau", "wanted", "ms", "device ms", "x floor", "tokens/s", "x plain", "busy")


def engine_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """Speed by budget, milliseconds by phase, and what ``auto`` chose."""
    acceptance = report["acceptance"]
    how = "its own acceptance"
    if acceptance["kind"] == IMPOSED:
        how = f"acceptance IMPOSED from {acceptance['trace']['name']}"
    used = report["used"]
    table = _table(f"{used['subject']}, batch {used['batch']}: a round, {how}", _SPEED)
    for row in report["rows"]:
        table.add_row(row["name"], *_speed(row))
    yield table
    if any(row["phases"] for row in report["rows"]):
        table = _table("milliseconds by phase, a run of its own", (*PHASES, "whole"))
        for row in report["rows"]:
            if row["phases"]:
                found = [*row["phases"]["seconds"].values(), row["phases"]["whole"]]
                table.add_row(row["name"], *(f"{1e3 * value:.2f}" for value in found))
        yield table
    for row in report["rows"]:
        if row["auto"] is not None:
            yield _choices(row["auto"])


def _choices(auto: Mapping[str, Any]) -> Table:
    """Rows that ``auto`` chose, with what was known of them at the newest choice."""
    table = _table("auto: rows of all trees", ("rounds", "ms", "expected", "tokens/s"))
    counts: Counter[int] = Counter()
    for line in auto["rounds"]:
        counts[line["rows"]] += line["rounds"]
    for option in auto["newest"]:
        table.add_row(
            str(option["rows"]), str(counts[option["rows"]]), f"{1e3 * option['seconds']:.2f}",
            f"{option['expected_tokens']:.2f}", f"{option['tokens_per_second']:.0f}",
        )  # fmt: skip
    return table


def _table(title: str, numbers: tuple[str, ...]) -> Table:
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("", no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _speed(row: Mapping[str, Any]) -> list[str]:
    wanted, device, floor = row["wanted"], row["device_seconds_per_round"], row["floor"]
    ratio, busy = row["ratio_to_plain"], row["device_busy_share"]
    return [
        f"{row['rows_per_round']:.0f}",
        f"{row['tau']:.2f}",
        "" if wanted is None or wanted["tau"] is None else f"{wanted['tau']:.2f}",
        f"{1e3 * row['seconds_per_round']['median']:.2f}",
        "" if device is None else f"{1e3 * device['median']:.2f}",
        "" if floor is None else f"{1 / floor['share']:.2f}",
        f"{row['tokens_per_second']['median']:.0f}",
        "" if ratio is None else f"{ratio['median']:.2f}",
        "" if busy is None else f"{busy['median']:.0%}",
    ]
