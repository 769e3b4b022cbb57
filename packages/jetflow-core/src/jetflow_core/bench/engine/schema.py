"""What a report of an engine benchmark must hold, checked before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetflow_core.bench.engine.marks import PHASES
from jetflow_core.bench.schema import ReportError

FORMAT = "jetflow-bench-engine/1"
IMPOSED, OWN = "imposed", "real"

_REPORT = (
    "format", "finished", "acceptance", "settings", "used", "definitions", "notes", "rows",
    "provenance",
)  # fmt: skip
_ROW = (
    "name", "budget", "rows_per_round", "tau", "wanted", "accepted", "tokens", "rounds",
    "seconds_per_round", "device_seconds_per_round", "tokens_per_second", "ratio_to_plain",
    "device_busy_share", "starved_rounds", "floor", "phases", "auto", "context",
    "texts_equal_to_plain",
)  # fmt: skip
_WANTED = ("source", "at_least", "tau", "drawn_tau", "cut_rounds")
_AUTO = ("rounds", "reasons", "expected_tokens", "tokens", "seconds", "trust", "newest", "costs")
_SPREAD = ("median", "min", "max", "by_repeat")


def check_report(report: Mapping[str, Any]) -> None:
    """Refuses a report in which a required field is missing, or that hides what is imposed.

    Raises:
        ReportError: naming the field and where it is missing.
    """
    _check(report, _REPORT, "the report")
    if report["format"] != FORMAT:
        raise ReportError(f"the report's format is {report['format']!r}, expected {FORMAT!r}")
    acceptance = report["acceptance"]
    _check(acceptance, ("kind", "statement", "trace", "table"), "acceptance")
    if acceptance["kind"] not in (IMPOSED, OWN):
        raise ReportError(f"acceptance is of kind {acceptance['kind']!r}")
    if not report["rows"]:
        raise ReportError("the report holds no row")
    for row in report["rows"]:
        _check_row(row, imposed=acceptance["kind"] == IMPOSED)


def _check_row(row: Mapping[str, Any], *, imposed: bool) -> None:
    where = f"the row {row.get('name')!r}"
    _check(row, _ROW, where)
    for name in ("seconds_per_round", "tokens_per_second"):
        _check(row[name], _SPREAD, f"{name} of {where}")
    # Lengths that were given may not pass for lengths that were found.
    if imposed and row["budget"] != 1:
        if row["wanted"] is None:
            raise ReportError(f"{where} does not say what acceptance was imposed")
        _check(row["wanted"], _WANTED, f"wanted of {where}")
    if (row["budget"] == "auto") != (row["auto"] is not None):
        raise ReportError(f"auto of {where} must say what was chosen, and only of budget auto")
    if row["auto"] is not None:
        _check(row["auto"], _AUTO, f"auto of {where}")
    if row["phases"] is not None:
        _check(row["phases"], ("rounds", "seconds"), f"the phases of {where}")
        _check(row["phases"]["seconds"], PHASES, f"the phases of {where}")


def _check(found: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name not in found:
            raise ReportError(f"{where} lacks {name!r}")
