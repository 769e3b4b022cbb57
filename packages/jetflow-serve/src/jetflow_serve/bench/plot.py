"""A picture of a report: throughput against latency, a line for each configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jetflow_core.bench.checks import check_plot
from jetflow_core.reports.files import write_output

from jetflow_serve.bench.schema import check_report

_LATENCIES = (
    ("tpot_ms", "median", "time per output token, median, ms"),
    ("ttft_ms", "median", "time to first token, median, ms"),
    ("e2el_ms", "p99", "whole answer, p99, ms"),
)
_UNITS = {"batch": "in flight", "rate": "requests/s"}


def plot_serve(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draws ``report`` into a file: a row of pictures for batches, and one for rates.

    Raises:
        ValueError: see ``check_plot`` and ``check_report``; or the report holds nothing yet.
    """
    check_report(report)
    file = check_plot(path)
    rows = [row for each in report["configurations"] for row in each["rows"]]
    kinds = [kind for kind in _UNITS if any(row["kind"] == kind for row in rows)]
    if not kinds:
        raise ValueError("nothing was measured, so there is nothing to draw")
    from matplotlib.figure import Figure

    size = (6 * len(_LATENCIES), 5 * len(kinds))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(kinds), len(_LATENCIES), squeeze=False)
    for line, kind in zip(axes, kinds, strict=True):
        for axis, latency in zip(line, _LATENCIES, strict=True):
            _draw(axis, report, kind, latency)
    ending = Path(path).suffix[1:]
    return write_output(file, lambda partial: figure.savefig(partial, dpi=120, format=ending))


def _draw(axis: Any, report: Mapping[str, Any], kind: str, latency: tuple[str, str, str]) -> None:
    name, which, label = latency
    for each in report["configurations"]:
        rows = [row for row in each["rows"] if row["kind"] == kind]
        times = [row["figures"][name][which] for row in rows]
        speeds = [row["figures"]["tokens_per_second"] for row in rows]
        axis.plot(times, speeds, marker="o", label=each["name"])
        for row, time, speed in zip(rows, times, speeds, strict=True):
            axis.annotate(
                f"{row['value']:g}", (time, speed), (4, 4), textcoords="offset points",
                fontsize="x-small",
            )  # fmt: skip
    axis.set_title(f"numbers at the points: {_UNITS[kind]}")
    axis.set_xlabel(label)
    axis.set_ylabel("new tokens a second, all requests")
    axis.set_xlim(left=0)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
