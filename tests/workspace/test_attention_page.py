"""The page about tree attention says what the benchmark's files recorded."""

import json
import re
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs/benchmarks"


def test_every_figure_of_the_page_is_a_recorded_one() -> None:
    page = (PAGES / "attention.md").read_text()
    files = re.findall(r"\((attention-[\w-]+\.json)\)", page)
    found = {}
    for file in files:
        recorded = json.loads((PAGES / file).read_text())
        assert recorded["device"] in page
        assert f"torch {recorded['torch']}, triton {recorded['triton']}" in page
        for each in recorded["results"]:
            found[each["rows"], each["prefix"], each["backend"]] = each
    rows = re.findall(r"^\| (\d+) \| (\d+) \|(.+)\|$", page, re.M)
    assert {(int(r), int(p)) for r, p, _ in rows} == {(r, p) for r, p, _ in found}
    for nodes, prefix, told in rows:
        triton, cuda = (found[int(nodes), int(prefix), kind] for kind in ("triton", "cuda"))
        assert max(triton["error"], cuda["error"]) < 1.6e-2
        assert [each.strip() for each in told.split("|")] == [
            f"{cuda['floor_us']:.1f}",
            f"{triton['median_us']:.1f}",
            f"{cuda['median_us']:.1f}",
            f"{cuda['median_us'] / triton['median_us']:.2f}",
            f"{100 * cuda['share_of_floor']:.0f} %",
        ]
