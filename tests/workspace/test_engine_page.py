"""The page about the engine on an H200 says what its files recorded."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
PAGE = (FOLDER / "engine.md").read_text(encoding="utf-8")
NAMES = ("qwen3-8b-1k", "qwen3-8b-8k", "qwen3-8b-1k-one-core", "smollm2-gsm8k")


def _recorded(name: str) -> dict[str, Any]:
    file = f"engine-h200-{name}-2026-11-30.json"
    assert f"]({file})" in PAGE
    found: dict[str, Any] = json.loads((FOLDER / file).read_text(encoding="utf-8"))
    return found


def _line(row: dict[str, Any]) -> str:
    phases = row["phases"]["seconds"]
    rest = sum(phases.values()) - phases["head"] - phases["verify"]
    seconds = (
        row["seconds_per_round"]["median"], row["floor"]["seconds"], phases["head"],
        phases["verify"], rest,
    )  # fmt: skip
    cells = [row["name"], f"{row['tau']:.2f}", *(f"{1e3 * each:.2f}" for each in seconds)]
    cells += [
        f"{row['tokens_per_second']['median']:,.0f}",
        f"{row['ratio_to_plain']['median']:.2f}",
    ]
    return "| " + " | ".join([*cells, f"{row['device_busy_share']['median']:.3f}"]) + " |"


@pytest.mark.parametrize("name", NAMES)
def test_every_row_of_a_file_is_on_the_page(name: str) -> None:
    file = _recorded(name)
    assert file["finished"]
    made = file["provenance"]
    assert made["device_name"] in PAGE and made["date"][:10] in PAGE
    text = " ".join(PAGE.split())
    assert all(f"{of} {made['packages'][of].split('+')[0]}" in text for of in ("torch", "triton"))
    lines = [_line(row) for row in file["rows"]]
    assert "\n".join(lines) in PAGE


def test_no_other_rows_are_on_the_page() -> None:
    told = re.findall(r"^\| (?:plain|tree-\d+) .*$", PAGE, re.M)
    assert len(told) == sum(len(_recorded(name)["rows"]) for name in NAMES)


def test_imposed_acceptance_is_named_as_that() -> None:
    for name in NAMES:
        file = _recorded(name)
        assert file["acceptance"]["kind"] == ("real" if "smollm2" in name else "imposed")
    assert PAGE.index("**Acceptance is imposed**") < PAGE.index(NAMES[0])
