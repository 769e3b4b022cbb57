"""Pictures of a study: tau by budget of every variant beside what it stands against."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jetflow_core.reports.files import write_output

from jetflow_train.evaluation.plots import check_plots

_WIDE = 3
_TOGETHER = 5
"""Variants beside a baseline in one part of a picture; more cannot be told apart."""


def panels(plan: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Parts of each picture: a variant with those that stand against it; then those alone."""
    variants = plan["variants"]
    found: dict[str, list[str]] = {}
    for each in variants:
        if "against" in each:
            found.setdefault(each["against"], []).append(each["name"])
    shown = {name for first, others in found.items() for name in (first, *others)}
    alone: dict[str, list[str]] = {v["name"]: [] for v in variants if v["name"] not in shown}
    parts = [
        (first, others[place : place + _TOGETHER])
        for first, others in found.items()
        for place in range(0, len(others), _TOGETHER)
    ]
    return [*parts, *alone.items()]


def plot_study(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws a report; a picture for each set and temperature.

    Raises:
        ValueError: matplotlib is not installed, or the folder cannot be written.
    """
    check_plots(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parts = panels(results["plan"])
    return [_picture(group, parts, folder) for group in results["figures"]]


def _picture(
    group: Mapping[str, Any], parts: Sequence[tuple[str, Sequence[str]]], folder: Path
) -> Path:
    from matplotlib.figure import Figure

    rows = {row["variant"]: row for row in group["variants"]}
    drawn = [
        names for first, others in parts if (names := [n for n in (first, *others) if n in rows])
    ]
    wide = min(_WIDE, len(drawn))
    figure = Figure(figsize=(5 * wide, 4 * -(-len(drawn) // wide)), layout="constrained")
    axes = figure.subplots(-(-len(drawn) // wide), wide, squeeze=False).ravel()
    for axis, names in zip(axes, drawn, strict=False):
        for name in names:
            _line(axis, rows[name])
        axis.set_xscale("log", base=2)
        budgets = [each["budget"] for each in rows[names[0]]["budgets"]]
        axis.set_xticks(budgets, [str(budget) for budget in budgets])
        axis.set_xlabel("budget (rows, root included)")
        axis.set_ylabel("tokens a round")
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small")
    for axis in axes[len(drawn) :]:
        axis.set_axis_off()
    figure.suptitle(f"{group['set']}, temperature {group['temperature']:g}")
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"tau-{group['set']}-{group['temperature']:g}")
    return write_output(
        folder / f"{name}.png", lambda partial: figure.savefig(partial, dpi=120, format="png")
    )


def _line(axis: Any, row: Mapping[str, Any]) -> None:
    taus = [each["tau"] for each in row["budgets"]]
    around = [
        [each["tau"] - each["tau_interval"][0] for each in row["budgets"]],
        [each["tau_interval"][1] - each["tau"] for each in row["budgets"]],
    ]
    budgets = [each["budget"] for each in row["budgets"]]
    axis.errorbar(budgets, taus, around, marker="o", capsize=2, label=row["variant"])
