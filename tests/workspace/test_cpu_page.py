"""The page about decoding on a CPU says what the recorded reports say."""

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"


@pytest.mark.parametrize("name", ["1-thread-2026-11-30", "2-threads-2026-11-29"])
def test_every_row_of_the_page_is_a_set_of_the_report(name: str) -> None:
    report = json.loads((FOLDER / f"decode-cpu-{name}.json").read_text())
    page = (FOLDER / "decode-cpu.md").read_text()
    for found in report["sets"]:
        plain, auto = (
            next(row for row in found["rows"] if row["kind"] == kind) for kind in ("plain", "auto")
        )
        ratio = auto["speed"]["ratio_to_plain"]
        cells = [
            f"{found['name']} ({found['prompts']})",
            f"{plain['speed']['tokens_per_second']:.1f}",
            f"{auto['speed']['tokens_per_second']:.1f}",
            f"{ratio['median']:.2f}",
            f"{ratio['min']:.2f} to {ratio['max']:.2f}",
            f"{auto['tau']:.2f}",
            f"{auto['rows_per_round']:.1f}",
            f"{auto['prompt_lookup']['tau']:.2f}",
            f"{100 * auto['loop_share']:.0f} %",
        ]
        assert "| " + " | ".join(cells) + " |" in page
    assert f"measured for {report['used']['warm_up_setup_seconds']['auto']:.1f} s" in page
