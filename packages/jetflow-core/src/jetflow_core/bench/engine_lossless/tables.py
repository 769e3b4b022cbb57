"""A report of the fast engine's lossless check as tables and lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table


def lossless_tables(report: Mapping[str, Any]) -> Iterator[Table]:
    """One table for each part that was run."""
    if report["exact"]:
        yield _exact(report["exact"])
    if report["rounding"]:
        yield _rounding(report["rounding"])
    if report["sampling"]:
        yield _sampling(report["sampling"])


def lossless_lines(report: Mapping[str, Any], most: int = 10) -> Iterator[str]:
    """The verdicts, and the first differences."""
    if report["exact"]:
        count = report["differences"]
        yield (
            f"{report['answers_compared']} answers, {report['tokens_compared']} tokens in float32, "
            f"{report['preemptions']} preemptions: "
            + (f"{count} differences" if count else "all identical")
        )
    listed = [(cell, one) for cell in report["exact"] for one in cell["differences"]]
    for cell, one in listed[:most]:
        yield (
            f"{cell['drafter']} at budget {cell['budget']}, {one['run']} against {one['against']}, "
            f"{one['prompt']}: token {one['position']} is {one['found']}, expected "
            f"{one['expected']}, logit gap {_number(one['logit_gap'])}"
        )
    for cell in report["exact"]:
        if cell["lacking"]:
            yield (
                f"{cell['drafter']} at budget {cell['budget']} had no {', '.join(cell['lacking'])} "
                "while others decoded: it has not shown that nothing is lost there"
            )
    for cell in report["sampling"]:
        for text in cell["guards"]["broken"]:
            yield f"guard words written in {cell['dtype']}: {text}"
        if not cell["memory"]["steady"]:
            yield f"memory grew in {cell['dtype']}: {cell['memory']['growth_bytes']} bytes"
    yield "passed" if report["passed"] else "NOT passed"


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title)
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place == 0 else "right")
    return table


def _exact(cells: list[Mapping[str, Any]]) -> Table:
    table = _table(
        "float32, greedy: requests together and alone against transformers' generate",
        ("drafter", "budget", "answers", "different", "tau", "at once", "came", "ended",
         "preempted"),
    )  # fmt: skip
    for cell in cells:
        both = cell["together"]
        table.add_row(
            cell["drafter"], str(cell["budget"]), str(2 * both["requests"]),
            str(len(cell["differences"])), f"{cell['alone']['tau']:.2f}", str(both["most_at_once"]),
            str(both["admissions"]), str(both["completions"]), str(both["preemptions"]),
        )  # fmt: skip
    return table


def _rounding(cells: list[Mapping[str, Any]]) -> Table:
    table = _table(
        "bfloat16, greedy: first differences from plain rounds of the same engine",
        ("drafter", "batch", "rows", "answers", "tree", "chain", "tree, per 1000 tokens",
         "chain, per 1000 tokens", "largest gap"),
    )  # fmt: skip
    for cell in cells:
        for pair in cell["pairs"]:
            tree, chain = pair["tree"], pair["chain"]
            gaps = [one["largest_gap"] for one in (tree, chain) if one["largest_gap"] is not None]
            table.add_row(
                pair["drafter"], str(cell["batch"]), str(pair["rows"]), str(cell["answers"]),
                str(tree["different"]), str(chain["different"]),
                f"{tree['per_thousand_tokens']:.2f}", f"{chain['per_thousand_tokens']:.2f}",
                _number(max(gaps, default=None)),
            )  # fmt: skip
    return table


def _sampling(cells: list[Mapping[str, Any]]) -> Table:
    table = _table(
        "temperature 1 on random weights",
        ("type", "rounds", "requests", "preempted", "tau", "guarded tensors", "written outside",
         "memory", "seeds as in plain rounds"),
    )  # fmt: skip
    for cell in cells:
        guards, memory, same = cell["guards"], cell["memory"], cell["same_seed"]
        table.add_row(
            cell["dtype"], str(cell["rounds"]), str(cell["requests"]), str(cell["preemptions"]),
            f"{cell['tau']:.2f}", str(guards["tensors"]), str(len(guards["broken"])),
            "flat" if memory["steady"] else f"+{memory['growth_bytes']}",
            f"{same['equal_to_plain_rounds']}/{same['requests']}",
        )  # fmt: skip
    return table


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
