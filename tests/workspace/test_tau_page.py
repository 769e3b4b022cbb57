"""The page about tau says what the recorded reports say."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
PAGE = (FOLDER / "tau.md").read_text(encoding="utf-8")
LABELS = {"chain": "chain", "tree": "exact best-first"}
SETS = ["gsm8k", "humaneval", "mbpp", "mtbench"]


def _report(name: str) -> dict[str, Any]:
    file = f"tau-h200-{name}-2026-11-30.json"
    assert f"]({file})" in PAGE
    found: dict[str, Any] = json.loads((FOLDER / file).read_text(encoding="utf-8"))
    return found


def test_the_rows_of_the_page_are_those_of_the_reports() -> None:
    expected = []
    for name in SETS:
        (found,) = _report(name)["sets"]
        for row in found["rows"]:
            low, high = row["tau_interval"]
            cells = [
                f"{name} ({found['prompts']})",
                LABELS[row["kind"]],
                str(row["budget"]),
                f"{row['tau']:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{row['tau_without_loops']:.2f}",
                str(row["rounds"]),
                f"{row['prompt_lookup']['tau']:.2f}",
                f"{100 * row['loop_share']:.0f} %",
            ]
            expected.append("| " + " | ".join(cells) + " |")
    assert re.findall(r"^\|.*\|$", PAGE, re.M)[2:] == expected


@pytest.mark.parametrize("name", SETS)
def test_it_was_recorded_as_said(name: str) -> None:
    report = _report(name)
    where = report["provenance"]
    command = PAGE.split("jetflow bench decode ")[1].split("```")[0].replace("\\\n", "")
    said = command.replace("SET", name).replace("FILE", f"tau-{name}").split()
    assert said == where["arguments"][3:]
    assert where["device_name"] == "NVIDIA H200" and where["date"][:10] in PAGE
    for package in ("torch", "transformers", "triton"):
        assert f"{package} {where['packages'][package]}" in PAGE
    (head,) = report["used"]["heads"]
    assert (head["name"], head["depth"]) == ("smollm2-135m-head", 15)
    assert report["used"]["target"] in " ".join(PAGE.split())
