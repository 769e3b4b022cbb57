"""The page about one GPU and two says what the two runs recorded."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
PAGE = (FOLDER / "two-gpus.md").read_text(encoding="utf-8")
GIB = 2**30


def _steps(name: str) -> list[dict[str, Any]]:
    lines = (FOLDER / f"train-{name}-2026-11-30.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _result(name: str) -> dict[str, Any]:
    text = (FOLDER / f"train-{name}-2026-11-30.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


ONE, TWO = _steps("one-gpu"), _steps("two-gpus")


def _largest(*names: str) -> float:
    """Percent."""
    pairs = zip(ONE, TWO, strict=True)
    return 100 * max(abs(a[name] - b[name]) / a[name] for a, b in pairs for name in names)


def test_the_steps_are_those_that_were_logged() -> None:
    rows = re.findall(r"^\| (\d+) \|(.+)\|$", PAGE, re.M)
    assert [int(step) for step, _ in rows] == [each["step"] for each in ONE]
    for (_, told), one, two in zip(rows, ONE, TWO, strict=True):
        assert one["step"] == two["step"]
        assert [cell.strip() for cell in told.split("|")] == [
            *(f"{run['base_loss']:.4f}" for run in (one, two)),
            *(f"{run['path_loss']:.4f}" for run in (one, two)),
            *(f"{run['loss_rows_per_second']:,.0f}" for run in (one, two)),
        ]


def test_the_curves_are_one() -> None:
    loss, norm = _largest("base_loss", "path_loss"), _largest("grad_norm")
    assert loss < 0.2 and norm < 1
    assert f"any logged loss is {loss:.2f} %, of any logged gradient norm\n{norm:.1f} %" in PAGE


def test_speed_and_memory() -> None:
    ratio = TWO[-1]["loss_rows_per_second"] / ONE[-1]["loss_rows_per_second"]
    one, two = _result("one-gpu"), _result("two-gpus")
    assert f"**The speed is {ratio:.2f} times** that of one GPU" in PAGE
    assert f"{two['seconds']:.1f} seconds for {one['seconds']:.1f}" in PAGE
    assert f"a step has\n{one['loss_rows'] / one['steps']:,.0f} of them" in PAGE
    memory = [run["memory"] for run in (one, two)]
    for name in ("estimate", "measured"):
        told = re.search(rf"^\| memory, {name}.+\| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.M)
        assert told is not None
        assert list(told.groups()) == [f"{each[name] / GIB:.1f}" for each in memory]
    told = re.search(r"^\| measured to estimated \| ([\d.]+) \| ([\d.]+) \|$", PAGE, re.M)
    assert told is not None
    shares = [each["measured"] / each["estimate"] for each in memory]
    assert list(told.groups()) == [f"{share:.2f}" for share in shares]


def test_the_runs_are_the_same_but_for_the_gpus() -> None:
    one, two = _result("one-gpu"), _result("two-gpus")
    for name in ("train", "data", "steps", "loss_rows", "packages", "device_name", "git"):
        assert one[name] == two[name]
    for run, begin in ((one, "jetflow train "), (two, "-m jetflow_train train ")):
        assert run["date"][:10] in PAGE and run["device_name"] in PAGE
        assert f"{begin}{' '.join(run['arguments'][2:])}\n" in PAGE
        for package in ("torch", "transformers", "triton"):
            assert re.search(rf"{package}\s{re.escape(run['packages'][package])}", PAGE)
