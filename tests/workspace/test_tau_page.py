"""The page about tau says what the recorded reports say."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
LABELS = {"chain": "chain", "tree": "exact best-first", "all-children": "all children"}


REPORTS = [
    ("tau-gsm8k", "gsm8k", set(LABELS)),
    ("tau-humaneval", "humaneval", set(LABELS)),
    ("tau-mbpp", "mbpp", set(LABELS)),
    ("tau-mtbench", "mtbench", set(LABELS)),
    ("tau-cpu-gsm8k", "gsm8k", {"chain", "tree"}),
    ("tau-cpu-humaneval", "humaneval", {"chain", "tree"}),
    ("tau-cpu-mbpp", "mbpp", {"chain", "tree"}),
]


@pytest.mark.parametrize(("file", "name", "kinds"), REPORTS, ids=[file for file, _, _ in REPORTS])
def test_every_row_of_the_page_is_one_of_a_report(file: str, name: str, kinds: set[str]) -> None:
    report = json.loads((FOLDER / f"{file}-2026-11-30.json").read_text())
    page = (FOLDER / "tau.md").read_text()
    (found,) = report["sets"]
    assert {row["kind"] for row in found["rows"]} == kinds
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
        assert "| " + " | ".join(cells) + " |" in page
