"""Pictures of a decode report: tau and speed-up by budget, time by phase, acceptance by depth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jetflow_core.bench.checks import check_plot
from jetflow_core.bench.configurations import ALL_CHILDREN, CHAIN, TREE
from jetflow_core.bench.measured import PHASES
from jetflow_core.bench.schema import check_report
from jetflow_core.reports.files import write_output

_BY_BUDGET = (TREE, ALL_CHILDREN)


def plot_decode(report: Mapping[str, Any], path: str | Path) -> Path:
    """Draws ``report`` into a file, a row of four pictures for each prompt set.

    Raises:
        ValueError: see ``check_plot`` and ``check_report``.
    """
    check_report(report)
    file = check_plot(path)
    from matplotlib.figure import Figure

    sets = report["sets"]
    figure = Figure(figsize=(20, 4.5 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), 4, squeeze=False)
    for row, one in zip(axes, sets, strict=True):
        _tau(row[0], one)
        _speed(row[1], one)
        _phases(row[2], one)
        _depths(row[3], one)
    ending = Path(path).suffix[1:]
    return write_output(file, lambda partial: figure.savefig(partial, dpi=120, format=ending))


def _lines(one: Mapping[str, Any], kind: str) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of a kind by line: one line a head, named without its budget."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in one["rows"]:
        if row["kind"] == kind:
            lines.setdefault(row["name"].rpartition("-")[0], []).append(row)
    return lines


def _tau(axis: Any, one: Mapping[str, Any]) -> None:
    for kind in _BY_BUDGET:
        for name, rows in _lines(one, kind).items():
            taus = [row["tau"] for row in rows]
            around = [
                [row["tau"] - row["tau_interval"][0] for row in rows],
                [row["tau_interval"][1] - row["tau"] for row in rows],
            ]
            axis.errorbar([row["budget"] for row in rows], taus, around, marker="o", label=name)
    for row in one["rows"]:
        if row["kind"] == CHAIN:
            axis.plot([row["budget"]], [row["tau"]], "s", label=row["name"])
    lookup = one["rows"][0]["prompt_lookup"]["tau"]
    axis.axhline(lookup, linestyle="--", color="grey", label="prompt lookup")
    _finish(axis, f"{one['name']}: tokens per round", "budget (rows, root included)", log=True)


def _speed(axis: Any, one: Mapping[str, Any]) -> None:
    for kind in _BY_BUDGET:
        for name, rows in _lines(one, kind).items():
            timed = [row for row in rows if row["speed"] and row["speed"]["ratio_to_plain"]]
            ratios = [row["speed"]["ratio_to_plain"]["median"] for row in timed]
            axis.plot([row["budget"] for row in timed], ratios, marker="o", label=name)
    for row in one["rows"]:
        if row["budget"] is None and row["speed"] and row["speed"]["ratio_to_plain"]:
            ratio = row["speed"]["ratio_to_plain"]["median"]
            axis.axhline(ratio, linestyle=":", label=row["name"])
    axis.axhline(1.0, linestyle="--", color="grey", label="plain")
    _finish(axis, f"{one['name']}: times plain decoding", "budget (rows, root included)", log=True)


def _phases(axis: Any, one: Mapping[str, Any]) -> None:
    rows = [row for row in one["rows"] if row["speed"]]
    names = [row["name"] for row in rows]
    below = [0.0] * len(rows)
    for phase in PHASES:
        heights = [1e3 * row["speed"]["seconds_per_round_by_phase"][phase] for row in rows]
        axis.bar(names, heights, bottom=below, label=phase)
        below = [a + b for a, b in zip(below, heights, strict=True)]
    axis.tick_params(axis="x", rotation=60)
    _finish(axis, f"{one['name']}: milliseconds a round", "", log=False)


def _depths(axis: Any, one: Mapping[str, Any]) -> None:
    for row in one["rows"]:
        found = [entry for entry in row["acceptance"]["by_depth"] if entry["offered"]]
        if found:
            rates = [entry["kept"] / entry["offered"] for entry in found]
            axis.plot([entry["depth"] for entry in found], rates, marker=".", label=row["name"])
    axis.set_ylim(0, 1)
    _finish(axis, f"{one['name']}: accepted of those that came there", "depth", log=False)


def _finish(axis: Any, title: str, label: str, *, log: bool) -> None:
    axis.set_title(title)
    axis.set_xlabel(label)
    if log:
        axis.set_xscale("log", base=2)
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize="small")
