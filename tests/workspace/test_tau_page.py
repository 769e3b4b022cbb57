"""The page about tau on GSM8K says what the recorded report says."""

import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
LABELS = {
    "chain": "chain",
    "tree": "exact best-first, 64 rows",
    "all-children": "all children, 64 rows",
}


def test_every_row_of_the_page_is_one_of_the_report() -> None:
    report = json.loads((FOLDER / "tau-gsm8k-2026-11-29.json").read_text())
    page = (FOLDER / "tau-gsm8k.md").read_text()
    (found,) = report["sets"]
    assert f"({found['prompts']} prompts)" in page
    assert {row["kind"] for row in found["rows"]} == set(LABELS)
    for row in found["rows"]:
        low, high = row["tau_interval"]
        cells = [
            LABELS[row["kind"]],
            f"{row['tau']:.2f}",
            f"{low:.2f} to {high:.2f}",
            str(row["rounds"]),
            f"{row['prompt_lookup']['tau']:.2f}",
            f"{100 * row['loop_share']:.0f} %",
        ]
        assert "| " + " | ".join(cells) + " |" in page
