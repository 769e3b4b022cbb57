"""A study's report as a page of tables; no figure is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def table(results: Mapping[str, Any]) -> str:
    """Markdown: what was varied, tau and ratios by set and temperature, what is missing."""
    return "\n".join(
        [
            *_variants(results),
            *(line for group in results["figures"] for line in _group(group)),
            *_open(results),
        ]
    )


def _variants(results: Mapping[str, Any]) -> Iterator[str]:
    plan = results["plan"]
    yield from ("# Ablations", "")
    common = ", ".join(_option(name, value) for name, value in plan["train"].items())
    yield from (f"Every run: {common or 'defaults'}. Seeds {_words(plan['seeds'])}.", "")
    slots = _head_slots(results["runs"])
    yield from ("| variant | what it changes | beside | head slots |", "|---|---|---|---|")
    for each in plan["variants"]:
        told = [each["name"], _change(each), each.get("against", ""), slots.get(each["name"], "")]
        yield f"| {' | '.join(told)} |"
    yield ""


def _head_slots(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Slots that the head runs a round, by variant: one number, or one for each budget."""
    found = {}
    for run in runs:
        # What was measured by an earlier version does not tell.
        by_budget = {each["budget"]: each.get("head_slots", "") for each in run["policies"]}
        numbers = [by_budget[budget] for budget in sorted(by_budget)]
        found[run["variant"]] = _words(numbers if len(set(numbers)) > 1 else numbers[:1])
    return found


def _change(variant: Mapping[str, Any]) -> str:
    parts = [_option(name, value) for name, value in variant["changes"].items()]
    if "start" in variant:
        parts.insert(0, f"begins with the head of {variant['start']}")
    if "of" in variant:
        parts.append(f"the head of {variant['of']}")
    if variant["builder"] != "exact":
        parts.append(f"trees: {variant['builder']}")
    return ", ".join(parts) or "nothing"


def _option(name: str, value: Any) -> str:
    if isinstance(value, list):
        return f"{name} {_words(value)}"
    return f"{name} {str(value).lower() if isinstance(value, bool) else value}"


def _words(values: Sequence[Any]) -> str:
    return " ".join(map(str, values))


def _group(group: Mapping[str, Any]) -> Iterator[str]:
    budgets = list(
        dict.fromkeys(each["budget"] for row in group["variants"] for each in row["budgets"])
    )
    head = f"| {' | '.join(map(str, budgets))} |", f"|{'---|' * len(budgets)}"
    yield from (f"## {group['set']}, temperature {group['temperature']:g}", "")
    yield "Tau by budget (95 % interval over prompts; lowest to highest seed):"
    yield from ("", f"| variant | seeds {head[0]}", f"|---|---{head[1]}")
    for row in group["variants"]:
        cells = [_tau(each) for each in row["budgets"]]
        yield f"| {row['variant']} | {_words(row['seeds'])} | {' | '.join(cells)} |"
    compared = [row for row in group["variants"] if any(each["ratio"] for each in row["budgets"])]
    if compared:
        yield from ("", "Ratio of tau (95 % paired interval over prompts; lowest to highest seed):")
        yield from ("", f"| variant | to {head[0]}", f"|---|---{head[1]}")
    for row in compared:
        cells = [_ratio(each["ratio"]) for each in row["budgets"]]
        yield f"| {row['variant']} | {row['against']} | {' | '.join(cells)} |"
    yield ""


def _tau(each: Mapping[str, Any]) -> str:
    return _cell(each["tau"], each["tau_interval"], each["tau_by_seed"], 2)


def _ratio(ratio: Mapping[str, Any] | None) -> str:
    return "" if ratio is None else _cell(ratio["ratio"], ratio["interval"], ratio["by_seed"], 3)


def _cell(value: float, interval: Sequence[float], by_seed: Sequence[float], digits: int) -> str:
    text = f"{value:.{digits}f} ({interval[0]:.{digits}f}-{interval[1]:.{digits}f}"
    if len(by_seed) > 1:
        text += f"; {min(by_seed):.{digits}f}-{max(by_seed):.{digits}f}"
    return f"{text})"


def _open(results: Mapping[str, Any]) -> Iterator[str]:
    lines = [f"- {name}: not run: {why}" for name, why in results["not_run"].items()]
    lines += [f"- {name}: failed: {why}" for name, why in results["failed"].items()]
    lines += [f"- {name}: not finished" for name in results["missing"]]
    if lines:
        yield from ("## Not measured", "", *lines, "")
