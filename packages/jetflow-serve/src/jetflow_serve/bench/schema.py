"""What a report of a server benchmark must hold, checked before it is written or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetflow_serve.bench.client import LATENCIES

FORMAT = "jetflow-bench-serve/1"

_REPORT = (
    "format", "finished", "settings", "used", "definitions", "notes", "configurations", "failures",
    "provenance",
)  # fmt: skip
_CONFIGURATION = ("name", "kind", "budget", "extra_body", "server", "rows")
_ROW = (
    "load", "kind", "value", "requests", "figures", "ratio_to_plain", "texts_equal_to_plain",
    "repeats",
)  # fmt: skip
_FIGURES = (
    "tokens_per_second", "requests_per_second", "tau", "rounds", "rows_per_round",
    *(f"{name}_ms" for name in LATENCIES),
)  # fmt: skip
_FAILURE = ("name", "what", "log_end")


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
    for one in report["configurations"]:
        _check_fields(one, _CONFIGURATION, "a configuration")
        for row in one["rows"]:
            where = f"{row.get('load')} of {one['name']}"
            _check_fields(row, _ROW, where)
            _check_fields(row["figures"], _FIGURES, f"the figures of {where}")
            if not row["repeats"]:
                raise ReportError(f"{where} holds no run")
    for failure in report["failures"]:
        _check_fields(failure, _FAILURE, "a failure")
    if report["finished"] and report["failures"]:
        raise ReportError("a finished report holds failures")


def _check_fields(found: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name not in found:
            raise ReportError(f"{where} lacks {name!r}")
