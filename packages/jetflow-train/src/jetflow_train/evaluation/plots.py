"""Pictures of an evaluation: tau by budget, and acceptance by depth."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jetflow_core.reports.files import write_output

from jetflow_train.evaluation.policies import ALL_CHILDREN, BASE, CHAIN, SECOND_PASS, TREE
from jetflow_train.files import check_folder

TAU, DEPTHS = "tau-by-budget.png", "acceptance-by-depth.png"

_Draw = Callable[[Any, Mapping[str, Any]], None]


def check_plots(folder: Path) -> None:
    """Whether pictures can be drawn into ``folder``; nothing is left behind.

    Raises:
        ValueError: matplotlib is not installed, or the folder cannot be made or written.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "plots need matplotlib, which is not installed: install jetflow-train[plot]"
        )
    check_folder(folder)


def plot_eval(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws ``report`` into two files of ``folder``; a picture for each set and temperature.

    Raises:
        ValueError: see ``check_plots``.
    """
    check_plots(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _picture(report, folder / name, draw) for name, draw in ((TAU, _tau), (DEPTHS, _depths))
    ]


def _picture(report: Mapping[str, Any], path: Path, draw: _Draw) -> Path:
    from matplotlib.figure import Figure

    sets = report["sets"]
    wide = len(sets[0]["temperatures"])
    figure = Figure(figsize=(5.5 * wide, 4.5 * len(sets)), layout="constrained")
    axes = figure.subplots(len(sets), wide, squeeze=False)
    for row, one in zip(axes, sets, strict=True):
        for axis, each in zip(row, one["temperatures"], strict=True):
            draw(axis, each)
            axis.set_title(f"{one['name']}, temperature {each['temperature']:g}")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small")
    return write_output(path, lambda partial: figure.savefig(partial, dpi=120, format="png"))


def _lines(
    each: Mapping[str, Any], kinds: Sequence[str]
) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Rows of one head, its candidates and a kind, with the line's name."""
    lines: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for row in each["rows"]:
        if row["kind"] in kinds:
            lines.setdefault((row["head"], row["candidates"], row["kind"]), []).append(row)
    for (head, candidates, kind), rows in lines.items():
        yield " ".join([head, *([BASE] if candidates == BASE else []), kind]), rows


def _tau(axis: Any, each: Mapping[str, Any]) -> None:
    for name, rows in _lines(each, (TREE, SECOND_PASS, ALL_CHILDREN, CHAIN)):
        taus = [row["tau"] for row in rows]
        around = [
            [row["tau"] - row["tau_interval"][0] for row in rows],
            [row["tau_interval"][1] - row["tau"] for row in rows],
        ]
        axis.errorbar([row["budget"] for row in rows], taus, around, marker="o", label=name)
    axis.axhline(each["prompt_lookup"]["tau"], linestyle="--", color="grey", label="prompt lookup")
    budgets = sorted({row["budget"] for row in each["rows"]})
    axis.set_xscale("log", base=2)
    axis.set_xticks(budgets, [str(budget) for budget in budgets])
    axis.set_xlabel("budget (rows, root included)")
    axis.set_ylabel("tokens a round")


def _depths(axis: Any, each: Mapping[str, Any]) -> None:
    for name, rows in _lines(each, (TREE, SECOND_PASS, CHAIN)):
        largest = max(rows, key=lambda row: int(row["budget"]))
        reached = [entry for entry in largest["accepted_by_depth"] if entry["reached"]]
        shares = [entry["share"] for entry in reached]
        label = f"{name} {largest['budget']}"
        axis.plot([entry["depth"] for entry in reached], shares, marker=".", label=label)
    axis.set_ylim(0, 1)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("depth")
    axis.set_ylabel("accepted of those that came there")
