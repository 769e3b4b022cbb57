"""The page about the lossless grid says what the recorded reports say."""

import json
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
REPORTS = sorted(FOLDER.glob("lossless-h200-*.json"))


def test_every_cell_of_the_grid_is_on_the_page_and_without_difference() -> None:
    page = (FOLDER / "lossless.md").read_text()
    seen = set()
    for file in REPORTS:
        report = json.loads(file.read_text())
        assert report["passed"] and report["exact"]
        assert f"by a logit gap of {report['plain_side']['smallest_logit_gap']:.4f}" in page
        for cell in report["cells"]:
            seen.add((cell["drafter"], cell["budget"]))
            cells = [
                cell["drafter"],
                str(cell["budget"]),
                str(cell["answers"]),
                f"{cell['tokens']:,}",
                str(cell["different"]),
                f"{cell['tau']:.2f}",
                f"{cell['scattered_rounds']:,}",
            ]
            assert "| " + " | ".join(cells) + " |" in page
    drafters, budgets = ("head", "oracle", "wrong", "random"), (1, 2, 16, 64, 256)
    assert seen == {(drafter, budget) for drafter in drafters for budget in budgets}
