"""The page about tree attention on an H200 says what its files recorded."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
PAGE = (FOLDER / "attention.md").read_text(encoding="utf-8")


def _recorded(name: str) -> dict[str, Any]:
    assert f"]({name})" in PAGE
    found: dict[str, Any] = json.loads((FOLDER / name).read_text(encoding="utf-8"))
    return found


def test_every_case_of_the_file_is_a_row_and_no_other() -> None:
    file = _recorded("attention-h200-2026-11-30.json")
    assert f"{file['date'][:10]}, {file['device']}, torch {file['torch']}" in " ".join(PAGE.split())
    cases: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for each in file["results"]:
        cases.setdefault((each["prefix"], each["rows"]), {})[each["backend"]] = each
    lines = []
    for (prefix, rows), by in sorted(cases.items()):
        triton, cuda = by["triton"], by["cuda"]
        peer = min(by["sdpa"]["median_us"], by["sdpa-repeated"]["median_us"])
        cells = [
            str(rows), str(prefix), f"{cuda['floor_us']:.1f}",
            f"{triton['median_us']:.1f}", f"{cuda['median_us']:.1f}",
            f"{cuda['median_us'] / triton['median_us']:.2f}", f"{cuda['share_of_floor']:.0%}",
            f"{peer:.1f}", f"{peer / cuda['median_us']:.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells).replace("%", " %") + " |")
    assert "\n".join(lines) in PAGE
    assert len(re.findall(r"^\| \d+ \|", PAGE, re.M)) == len(lines)


def test_flex_attention_is_what_its_file_says() -> None:
    (cuda,), (flex,) = (
        [each for each in _recorded("attention-h200-flex-2026-11-30.json")["results"]
         if each["backend"] == name]
        for name in ("cuda", "flex")
    )  # fmt: skip
    told = (
        f"{flex['median_us']:.1f} us, {flex['median_us'] / cuda['median_us']:.1f} times the CUDA "
        f"kernel's {cuda['median_us']:.1f}"
    )
    assert told in " ".join(PAGE.split())
