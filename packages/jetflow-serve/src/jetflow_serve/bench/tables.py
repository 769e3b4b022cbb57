"""A report as tables for a terminal: one for each load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

_COLUMNS = ("tok/s", "x plain", "TTFT", "p99", "ITL", "p99", "TPOT", "tau", "rows")


def serve_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """One table a load, a line for each configuration; times in milliseconds."""
    loads = dict.fromkeys(
        (row["load"], row["requests"]) for each in report["configurations"] for row in each["rows"]
    )
    for load, requests in loads:
        table = _table(f"{load}, {requests} requests; times in ms, medians and p99")
        for each in report["configurations"]:
            for row in each["rows"]:
                if row["load"] == load:
                    table.add_row(each["name"], *_cells(row))
        yield table


def _table(title: str) -> Table:
    # Narrow enough for 80 columns: rich cuts headers that do not fit.
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    table.add_column("configuration", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _cells(row: Mapping[str, Any]) -> list[str]:
    own, ratio = row["figures"], row["ratio_to_plain"]
    faster = None if ratio is None else ratio["tokens_per_second"]
    return [
        _number(own["tokens_per_second"]),
        "" if faster is None else f"{faster:.2f}",
        _number(own["ttft_ms"]["median"]),
        _number(own["ttft_ms"]["p99"]),
        _number(own["itl_ms"]["median"]),
        _number(own["itl_ms"]["p99"]),
        _number(own["tpot_ms"]["median"]),
        f"{own['tau']:.2f}",
        f"{own['rows_per_round']:.1f}",
    ]


def _number(value: float) -> str:
    # A slow server must not push another column out of a narrow terminal.
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def failure_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What could not be measured, each with the end of the log that says why."""
    for failure in report["failures"]:
        yield f"{failure['name']} was not measured: {failure['what']}"
        for line in failure["log_end"].splitlines():
            yield f"    {line}"
