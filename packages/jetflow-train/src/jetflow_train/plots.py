"""Pictures of a run: what its losses did, and tau where it was evaluated between steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jetflow_core.bench.checks import check_plot
from jetflow_core.reports.files import write_output

from jetflow_train.sinks.base import numbers
from jetflow_train.sinks.choose import METRICS
from jetflow_train.sinks.jsonl import read_lines

_LOSSES = {"base_loss": "base", "path_loss": "with the path term"}
_NORM = {"grad_norm": "gradient norm"}
Lines = Mapping[str, tuple[list[int], list[float]]]
"""Steps and values of each line by its name."""


def plot_run(run: Path, path: Path) -> Path:
    """Draws the metrics of the run folder ``run`` into a file.

    Raises:
        ValueError: see ``check_plot`` and ``read_lines``; or there is nothing to draw.
    """
    file = check_plot(path)
    entries = read_lines(run / METRICS)
    pictures = {
        "loss": named_lines(entries, _LOSSES),
        "norm of the gradient": named_lines(entries, _NORM),
        "tokens per round": tau_lines(entries),
    }
    drawn = {title: lines for title, lines in pictures.items() if lines}
    if not drawn:
        raise ValueError(f"{run / METRICS} holds no figures to draw")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(drawn), 4.5), layout="constrained")
    (row,) = figure.subplots(1, len(drawn), squeeze=False)
    for axis, (title, lines) in zip(row, drawn.items(), strict=True):
        _draw(axis, title, lines)
    ending = path.suffix[1:]
    return write_output(file, lambda partial: figure.savefig(partial, dpi=120, format=ending))


def named_lines(entries: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> Lines:
    """The figures ``names`` of entries that have them, under the names that people read."""
    points = {
        shown: [(e["step"], e[name]) for e in entries if e.get(name) is not None]
        for name, shown in names.items()
    }
    return _lines(points)


def tau_lines(entries: Sequence[Mapping[str, Any]]) -> Lines:
    """Tau of evaluations by set and kind of tree, such as ``math, 64``."""
    points: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        values = entry.get("values")
        for name, value in numbers(values if isinstance(values, Mapping) else {}).items():
            kind, _, shown = name.partition("/")
            if kind == "tau":
                points.setdefault(shown.replace("/", ", "), []).append((entry["step"], value))
    return _lines(points)


def _lines(points: Mapping[str, Sequence[tuple[int, float]]]) -> Lines:
    return {
        name: ([step for step, _ in found], [value for _, value in found])
        for name, found in points.items()
        if any(value for _, value in found)
    }


def _draw(axis: Any, title: str, lines: Lines) -> None:
    for name, (steps, values) in lines.items():
        axis.plot(steps, values, marker="." if len(steps) < 40 else None, label=name)
    axis.set_title(title)
    axis.set_xlabel("step")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
