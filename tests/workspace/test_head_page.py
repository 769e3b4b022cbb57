"""The page about the demonstration head says what its config.json and the two reports recorded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/benchmarks"
PAGE = (FOLDER / "demonstration-head.md").read_text(encoding="utf-8")
NAMES = {"GSM8K": "gsm8k", "HumanEval": "humaneval", "MBPP": "mbpp", "MT-Bench": "mtbench"}
TREES = {"chain": "chain", "exact best-first": "tree", "all children": "all-children"}


@pytest.fixture(scope="module")
def head() -> dict[str, Any]:
    """The head's own section of its config.json."""
    config = ROOT / "packages/jetflow-core/src/jetflow_core/data/smollm2-135m-head/config.json"
    found: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))["jetflow"]
    return found


def test_what_the_trainer_measured_is_what_the_page_says(head: dict[str, Any]) -> None:
    recorded = head["provenance"]["evaluation"]
    rows = re.findall(r"^\| ([\w-]*)(?: \((\d+)\))? ?\| (.+?) \|((?: [\d.]+ \|){4})$", PAGE, re.M)
    assert len(rows) == 2 * len(NAMES)
    current = ""
    for name, prompts, kind, figures in rows:
        current = NAMES[name] if name else current
        if name:
            assert int(prompts) == recorded[current]["prompts"]
        tau = recorded[current][{"path term on": "path", "path term off": "marginal"}[kind]]["tau"]
        assert figures.split() == [
            part for b in ("chain", "16", "64", "256") for part in (f"{tau[b]:.2f}", "|")
        ]


def test_the_run_is_the_recorded_one(head: dict[str, Any]) -> None:
    run = head["provenance"]
    assert f"{run['steps']:,} steps\nin {run['seconds']:.0f} seconds" in PAGE
    for package in ("torch", "transformers", "triton"):
        assert f"{package} {run['packages'][package]}" in PAGE
    assert run["device_name"] == "NVIDIA H200" and run["date"][:10] in PAGE
    command = PAGE.replace("\\\n   ", "").split("jetflow_train ")[1].split("\njetflow calibrate")[0]
    said, recorded = command.split(), run["arguments"][1:]
    assert sorted(said) == sorted(recorded)
    greedy, middle, high = head["score_temperatures"]
    assert (greedy[0], middle[0], high[0]) == (0, 0.7, 0.8)
    told = f"at {greedy[1]} for greedy requests, {middle[1]} at temperature 0.7,\n{high[1]} at 0.8."
    assert told in PAGE


def test_the_answers_are_those_of_the_log() -> None:
    log = (FOLDER / "regenerate-h200-2026-11-30.log").read_text(encoding="utf-8")
    asked = re.search(r"^([\d,]+) prompts x 3 temperatures$", log, re.M)
    last = re.findall(r"of ([\d,]+) answers, ([\d,]+) new tokens", log)[-1]
    assert asked is not None
    said = f"{last[0]} to {asked[1]} prompts with\n{last[1]} new tokens"
    assert said in PAGE


@pytest.mark.parametrize("name", ["greedy", "0.7"])
def test_what_is_shipped_walks_as_the_report_says(name: str) -> None:
    file = f"eval-h200-{name}-2026-11-30.json"
    report = json.loads((FOLDER / file).read_text(encoding="utf-8"))
    section = PAGE.split(f"({file})")[1].split("###")[0]
    kinds = {kind: label for label, kind in TREES.items()}
    expected = []
    for found in report["sets"]:
        (at,) = found["temperatures"]
        for row in (row for row in at["rows"] if row["candidates"] == "head"):
            low, high = row["tau_interval"]
            label = next(told for told, known in NAMES.items() if known == found["name"])
            cells = [
                f"{label} ({found['prompts']})",
                kinds[row["kind"]],
                str(row["budget"]),
                f"{row['tau']:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{row['tau_without_loops']:.2f}",
                f"{at['prompt_lookup']['tau']:.2f}",
                f"{100 * at['loop_share']:.0f} %",
            ]
            expected.append("| " + " | ".join(cells) + " |")
    assert re.findall(r"^\| (?!prompts).*\|$", section, re.M) == expected
    command = report["provenance"]["arguments"]
    assert command[command.index("--limit") + 1] == "128"
    assert report["provenance"]["packages"]["torch"] in PAGE
