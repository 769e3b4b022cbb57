"""The page about the paper's ablations says what two of its heads did at temperature 1."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
FILE = "ablations-t1-h200-2026-11-30.json"
REPORT: dict[str, Any] = json.loads((FOLDER / FILE).read_text(encoding="utf-8"))
SECTION = re.split(
    r"^##+ ", (FOLDER / "ablations.md").read_text("utf-8").split("# Temperature 1\n")[1], flags=re.M
)[0]
BUDGETS = REPORT["settings"]["budgets"]


def _rows(head: str, kind: str, budget: int) -> list[dict[str, Any]]:
    """Set by set."""
    return [
        row
        for each in REPORT["sets"]
        for at in each["temperatures"]
        for row in at["rows"]
        if (row["head"], row["candidates"]) == (f"{head}-s1/head", "head")
        and (row["kind"], row["budget"]) == (kind, budget)
    ]


def _pooled(rows: list[dict[str, Any]]) -> float:
    return sum(row["tokens"] for row in rows) / sum(row["rounds"] for row in rows)


def _told(value: float, interval: list[float], digits: int) -> str:
    return f"{value:.{digits}f} ({interval[0]:.{digits}f} to {interval[1]:.{digits}f})"


def test_the_table() -> None:
    expected = []
    for label, head, kind, budgets in (
        ("base", "base", "tree", BUDGETS),
        ("marginal", "marginal", "tree", BUDGETS),
        ("marginal, all children", "marginal", "all-children", [256]),
    ):
        for budget in budgets:
            rows = _rows(head, kind, budget)
            taus = [_told(row["tau"], row["tau_interval"], 2) for row in rows]
            expected.append([label, str(budget), *taus, f"{_pooled(rows):.2f}"])
    for budget in BUDGETS:
        mine, base = _rows("marginal", "tree", budget), _rows("base", "tree", budget)
        held = [row["ratio_to_first"] for row in mine]
        for one, row, other in zip(held, mine, base, strict=True):
            assert abs(one["ratio"] - row["tau"] / other["tau"]) < 1e-9
            assert one["interval"][1] < 1  # on every set and at every budget
        ratios = [_told(one["ratio"], one["interval"], 3) for one in held]
        whole = f"{_pooled(mine) / _pooled(base):.3f}"
        expected.append(["marginal to base", str(budget), *ratios, whole])
        if budget == 64:
            assert f"marginal has {whole} of the tau of base at 64 rows" in SECTION
    ours, theirs = _rows("base", "tree", 64), _rows("marginal", "all-children", 256)
    quarter = [mine["tau"] / other["tau"] for mine, other in zip(ours, theirs, strict=True)]
    assert min(quarter) > 1 and quarter.index(max(quarter)) == 2  # mbpp
    quarter.append(_pooled(ours) / _pooled(theirs))
    expected.append(["base to it", "64 to 256", *(f"{one:.3f}" for one in quarter)])
    table = [
        [cell.strip() for cell in line[1:-1].split("|")]
        for line in re.findall(r"^\|.*\|$", SECTION, re.M)
    ]
    assert table[0] == ["trees", "rows", *(each["name"] for each in REPORT["sets"]), "all sets"]
    assert sorted(table[2:]) == sorted(expected)


def test_the_path_term_is_worth_less_than_at_a_lower_temperature() -> None:
    study = json.loads((FOLDER / "ablations-h200-2026-11-30.json").read_text("utf-8"))
    warm = {
        cell["budget"]: cell["ratio"]["by_seed"][1]
        for group in study["figures"]
        if (group["set"], group["temperature"]) == ("all sets", 0.7)
        for row in group["variants"]
        if row["variant"] == "marginal"
        for cell in row["budgets"]
    }
    for budget in BUDGETS:
        rows = (_rows(head, "tree", budget) for head in ("marginal", "base"))
        mine, base = map(_pooled, rows)
        assert mine / base > warm[budget]


def test_it_was_recorded_as_said() -> None:
    command = SECTION.split("jetflow eval ")[1].split("```")[0].replace("\\\n", "")
    assert command.split() == REPORT["provenance"]["arguments"][2:]
    assert REPORT["provenance"]["date"][:10] in SECTION
    assert REPORT["provenance"]["device_name"] == "NVIDIA H200"
    study = json.loads((FOLDER / "ablations-h200-2026-11-30.json").read_text("utf-8"))
    assert REPORT["provenance"]["packages"] == study["provenance"]["packages"]
    assert [head["name"] for head in REPORT["heads"]] == ["base-s1/head", "marginal-s1/head"]
    runs = {run["run"]: run["parameters"] for run in study["runs"]}
    for head in REPORT["heads"]:
        assert head["parameters"] == runs[head["name"].split("/")[0]]
