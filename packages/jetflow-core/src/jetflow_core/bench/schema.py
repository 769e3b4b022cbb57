"""What a report of a decode benchmark must hold, checked before it is written or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetflow_core.bench.configurations import ALL_CHILDREN, CHAIN, TREE

FORMAT = "jetflow-bench-decode/1"

_REPORT = ("format", "mode", "settings", "used", "definitions", "notes", "sets", "provenance")
_SET = ("name", "prompts", "fingerprint", "rows")
# Without these a tau cannot be judged: they are required, not advised.
_ROW = (
    "name", "kind", "budget", "tau", "formula", "tokens", "rounds", "tau_interval",
    "tau_without_loops", "loop_share", "loop_definition", "prompt_lookup", "acceptance",
    "texts_equal_to_plain", "speed",
)  # fmt: skip
_LOOKUP = ("tau", "ngram", "max_draft")
_SPEED = (
    "tokens_per_second", "ratio_to_plain", "break_even_tau", "seconds_per_round_by_phase",
    "target_passes", "prefill_seconds", "setup_seconds", "repeats",
)  # fmt: skip
MODES = ("timed", "tau-only")


class ReportError(ValueError):
    """A report lacks what it must hold; the message names the field."""


def check_report(report: Mapping[str, Any]) -> None:
    """Refuses a report in which a required field is missing.

    Raises:
        ReportError: naming the field and where it is missing.
    """
    _check_fields(report, _REPORT, "the report")
    if report["format"] != FORMAT:
        raise ReportError(f"the report's format is {report['format']!r}, expected {FORMAT!r}")
    if report["mode"] not in MODES:
        raise ReportError(f"the report's mode is {report['mode']!r}, expected one of {MODES}")
    _check_fields(report["settings"], ("max_new_tokens", "temperature", "seed"), "settings")
    if not report["sets"]:
        raise ReportError("the report holds no prompt set")
    for one in report["sets"]:
        _check_fields(one, _SET, "a prompt set")
        _check_chains(one)
        for row in one["rows"]:
            _check_row(row, f"{row.get('name')} on {one['name']}", report["mode"] == "timed")


def _check_chains(one: Mapping[str, Any]) -> None:
    """A tree is told beside the chain of its own head, or not at all."""
    chains = {row.get("head") for row in one["rows"] if row.get("kind") == CHAIN}
    for row in one["rows"]:
        if row.get("kind") in (TREE, ALL_CHILDREN) and row.get("head") not in chains:
            raise ReportError(f"{row.get('name')} on {one['name']} has no chain of the same head")


def _check_row(row: Mapping[str, Any], where: str, timed: bool) -> None:
    _check_fields(row, _ROW, where)
    _check_fields(row["prompt_lookup"], _LOOKUP, f"the prompt lookup of {where}")
    _check_fields(row["acceptance"], ("by_depth", "by_rank"), f"the acceptance of {where}")
    if timed:
        if row["speed"] is None:
            raise ReportError(f"{where} has no speed although the runs were timed")
        _check_fields(row["speed"], _SPEED, f"the speed of {where}")


def _check_fields(found: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name not in found:
            raise ReportError(f"{where} lacks {name!r}")
