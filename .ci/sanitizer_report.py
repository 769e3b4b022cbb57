"""What compute-sanitizer found, as one JSON file: `sanitizer_report.py WORK OUT TOOL...`.

WORK holds the names of the lists, those that were left out among `all`, the options of the tools,
and a folder for each tool and list, as `sanitize` leaves them. Exit code 1 if a tool found an
error, died or ran nothing.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

FORMAT = "jetflow-sanitize/1"
_SUMMARY = re.compile(
    r"^=+ (?:ERROR SUMMARY: (\d+) errors?"
    r"|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) errors?, (\d+) warnings?\))",
    re.MULTILINE,
)
_PLACE = re.compile(r"^=+ .*?\bat (.+?)\+0x[0-9a-f]+", re.MULTILINE)
_NOTHING = "before first instrumented API call"
_MOST_KERNELS = 8
_ENVIRONMENT = ("device", "torch", "triton", "cuda", "date")


def list_under(place: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A list under a tool, and what its own report says.

    Args:
        place: folder with its name, log, exit code and report.
    """
    log = (place / "log").read_text(encoding="utf-8", errors="replace")
    code, seconds = map(int, (place / "end").read_text(encoding="utf-8").split())
    file = place / "check.json"
    checked = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found = _SUMMARY.findall(log)
    errors = sum(int(plain or hazards) for plain, hazards, _ in found)
    row = {
        "list": (place / "list").read_text(encoding="utf-8"),
        "errors": errors,
        "warnings": sum(int(warnings or 0) for _, _, warnings in found),
        "kernels": list(dict.fromkeys(_PLACE.findall(log)))[:_MOST_KERNELS],
        "checks": checked.get("checks", 0),
        "seconds": seconds,
    }
    row["failed"] = _failure(log, bool(found), errors, checked, code)
    return row, checked


def _failure(log: str, ended: bool, errors: int, checked: dict[str, Any], code: int) -> str | None:
    """Why a list under a tool shows nothing good, in a line; None: it does."""
    for fails, reason in (
        (_NOTHING in log, "the tool saw no call to CUDA"),
        (not ended, f"the tool did not come to its end: exit code {code}"),
        (errors > 0, f"{errors} errors"),
        (not checked.get("checks"), "nothing was checked"),
        (checked.get("failed"), f"{checked.get('failed')} tasks failed without the tool's doing"),
        (checked.get("done") != checked.get("tasks"), "not all tasks were run"),
        (code != 0, f"exit code {code}"),
    ):
        if fails:
            return reason
    return None


def report(work: Path, tools: list[str]) -> dict[str, Any]:
    """All lists under all tools.

    Args:
        work: what `sanitize` left.
        tools: those that were asked for.
    """
    names, everything = (
        (work / name).read_text(encoding="utf-8").splitlines() for name in ("names", "all")
    )
    facts: dict[str, Any] = {}
    by_tool = []
    for tool in tools:
        rows = []
        for place in work.glob(f"{tool}.*"):
            row, checked = list_under(place)
            rows.append(row)
            facts = facts or {name: checked[name] for name in _ENVIRONMENT if name in checked}
        rows.sort(key=lambda row: names.index(row["list"]))
        done = [row["list"] for row in rows]
        by_tool.append(
            {
                "tool": tool,
                "errors": sum(row["errors"] for row in rows),
                "warnings": sum(row["warnings"] for row in rows),
                "checks": sum(row["checks"] for row in rows),
                "missing": [name for name in names if name not in done],
                "lists": rows,
            }
        )
    return {
        "format": FORMAT,
        "passed": bool(names and tools) and all(map(_clean, by_tool)),
        "sanitizer": (work / "version").read_text(encoding="utf-8").strip().splitlines()[-1],
        **facts,
        "options": (work / "options").read_text(encoding="utf-8"),
        "left_out": [name for name in everything if name not in names],
        "tools": by_tool,
    }


def _clean(tool: dict[str, Any]) -> bool:
    return not tool["missing"] and all(row["failed"] is None for row in tool["lists"])


def main(work: Path, out: Path, tools: list[str]) -> int:
    """Writes the whole report or none of it; the exit code."""
    found = report(work, tools)
    with tempfile.NamedTemporaryFile("w", dir=out.absolute().parent, delete=False) as file:
        json.dump(found, file, indent=1)
    os.replace(file.name, out)
    for tool in found["tools"]:
        for row in tool["lists"]:
            if row["failed"] is not None:
                where = f" in {', '.join(row['kernels'])}" if row["kernels"] else ""
                print(f"{tool['tool']} | {row['list']}: {row['failed']}{where}")
        for name in tool["missing"]:
            print(f"{tool['tool']} | {name}: it was not run")
        print(f"{tool['tool']}: {tool['errors']} errors in {len(tool['lists'])} lists")
    return 0 if found["passed"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
