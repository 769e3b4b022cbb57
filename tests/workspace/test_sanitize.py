"""`.ci/sanitize` with stand-ins for the tool and the checks: what it runs, reports and refuses."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "sanitize"
CLEAN = {
    "memcheck": "========= ERROR SUMMARY: 0 errors",
    "synccheck": "========= ERROR SUMMARY: 0 errors",
    "racecheck": "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
}
RACE = """\
========= Error: Race reported between Read access at a_kernel(int *)+0x300
=========     and Write access at a_kernel(int *)+0xcd90 [8 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"""
OUTSIDE = """\
========= Invalid __global__ read of size 4 bytes
=========     at other_kernel+0x2d80
========= ERROR SUMMARY: 3 errors"""
LISTS = ("first list", "another, longer")
PYTHON = """#!{python}
import json, os, sys
told = sys.argv[1:]
if told[0].endswith(".py"):
    os.execv(sys.executable, [sys.executable, *told])
elif told[0] == "-c":
    open("{folder}/built", "w").close()
elif "--names" in told:
    print(*{lists}, *([] if "--eager" in told else ["a list of graphs"]), sep="\\n")
else:
    name = told[told.index("--only") + 1]
    facts = {{"device": "a card", "checks": 5, "failed": 0, "tasks": 2, "done": 2}}
    facts |= {facts}.get(name, {{}})
    with open(told[told.index("--out") + 1], "w") as file:
        json.dump(facts, file)
    sys.exit(1 if facts["failed"] else 0)
"""
TOOL = """#!{python}
import os, subprocess, sys
told = sys.argv[1:]
if told == ["--version"]:
    print("NVIDIA (R) Compute Sanitizer\\nVersion 2025.1")
    sys.exit(0)
assert os.path.exists("{folder}/built")
tool, name = told[told.index("--tool") + 1], told[told.index("--only") + 1]
alone = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING") == "1"
assert alone == (tool == "memcheck")
assert "--eager" in told
open("{folder}/options", "w").write(" ".join(told[told.index("86") + 1 : told.index("python3")]))
code = subprocess.run(told[told.index("python3") :]).returncode
found = {found}.get((tool, name))
print({clean}[tool] if found is None else found)
sys.exit(86 if found and "0 errors" not in found else code)
"""


def sanitize(
    folder: Path,
    *options: str,
    found: dict[tuple[str, str], str] | None = None,
    facts: dict[str, dict[str, int]] | None = None,
    lists: tuple[str, ...] = LISTS,
) -> tuple[int, Any, str]:
    """Exit code, report and output of a run in which a tool and the checks say these things."""
    values = {
        "python": sys.executable, "folder": folder, "clean": CLEAN, "found": found or {},
        "facts": facts or {}, "lists": lists,
    }  # fmt: skip
    for name, text in (("python3", PYTHON), ("compute-sanitizer", TOOL)):
        (folder / name).write_text(text.format(**values), encoding="utf-8")
        (folder / name).chmod(0o755)
    out = folder / "report.json"
    done = subprocess.run(
        ["bash", str(SCRIPT), "--out", str(out), *options],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else None
    return done.returncode, report, done.stdout + done.stderr


def test_a_clean_run_is_reported_by_tool_and_list(tmp_path: Path) -> None:
    code, report, told = sanitize(tmp_path, "--jobs", "4")
    assert code == 0, told
    assert report["passed"] and report["format"] == "jetflow-sanitize/1"
    assert (report["device"], report["sanitizer"]) == ("a card", "Version 2025.1")
    assert report["left_out"] == ["a list of graphs"]
    assert [tool["tool"] for tool in report["tools"]] == ["memcheck", "racecheck", "synccheck"]
    for tool in report["tools"]:
        assert [row["list"] for row in tool["lists"]] == list(LISTS)
        assert (tool["errors"], tool["checks"], tool["missing"]) == (0, 10, [])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "built", "compute-sanitizer", "options", "python3", "report.json",
    ]  # fmt: skip


def test_options_go_to_the_tool_and_are_told(tmp_path: Path) -> None:
    options = "--kernel-name-exclude kns=a_kernel"
    code, report, told = sanitize(tmp_path, "--tools", "racecheck", "--options", options)
    assert code == 0, told
    assert report["options"] == (tmp_path / "options").read_text(encoding="utf-8") == options


def test_errors_of_a_tool_are_counted_where_they_were_found(tmp_path: Path) -> None:
    code, report, told = sanitize(
        tmp_path, "--tools", "memcheck racecheck",
        found={("racecheck", LISTS[0]): RACE, ("memcheck", LISTS[1]): OUTSIDE},
    )  # fmt: skip
    assert code == 1 and not report["passed"]
    memory, races = report["tools"]
    assert [row["errors"] for row in memory["lists"]] == [0, 3]
    assert [row["errors"] for row in races["lists"]] == [1, 0]
    assert races["lists"][0]["kernels"] == ["a_kernel(int *)"]
    assert memory["lists"][1]["kernels"] == ["other_kernel"]
    assert f"memcheck | {LISTS[1]}: 3 errors in other_kernel" in told


def test_a_run_that_shows_nothing_fails(tmp_path: Path) -> None:
    ended = CLEAN["memcheck"]
    unseen = "========= Error: Target application terminated before first instrumented API call"
    found = {("memcheck", "dies"): "", ("memcheck", "unseen"): f"{unseen}\n{ended}"}
    facts = {"empty": {"checks": 0}, "wrong": {"failed": 1}, "short": {"done": 1}}
    reasons = {
        "dies": "the tool did not come to its end: exit code 0",
        "unseen": "the tool saw no call to CUDA",
        "empty": "nothing was checked",
        "wrong": "1 tasks failed without the tool's doing",
        "short": "not all tasks were run",
        "fine": None,
    }
    code, report, told = sanitize(
        tmp_path, "--tools", "memcheck", "--jobs", "3",
        found=found, facts=facts, lists=tuple(reasons),
    )  # fmt: skip
    assert code == 1 and not report["passed"]
    rows = report["tools"][0]["lists"]
    assert {row["list"]: row["failed"] for row in rows} == reasons
    for name, reason in reasons.items():
        assert (f"memcheck | {name}: {reason}" in told) == (reason is not None)


def test_without_any_list_nothing_has_passed(tmp_path: Path) -> None:
    code, report, told = sanitize(tmp_path, "--only", "nobody's", lists=())
    assert (code, report) == (1, None)
    assert "no list has 'nobody's' in its name" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tools", "valgrind"), "no tool valgrind"),
        (("--jobs", "none"), "--jobs none is no number of processes"),
        (("--quick",), "unknown option --quick"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    code, report, told = sanitize(tmp_path, *options)
    assert (code, report) == (2, None)
    assert message in told
