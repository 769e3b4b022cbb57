"""The rates in the page about training are those that its files recorded."""

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "benchmarks"
TEXT = " ".join((DOCS / "training.md").read_text(encoding="utf-8").split())


def _last_step(name: str) -> dict[str, Any]:
    text = (FOLDER / f"train-{name}-2026-11-30.jsonl").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def test_the_answers_were_written_as_fast_as_the_log_says() -> None:
    name = "regenerate-h200-2026-11-30.log"
    log = (FOLDER / name).read_text(encoding="utf-8")
    lines = re.findall(r"([\d,]+) new tokens, ([\d,]+) tokens/s", log)
    told = [tuple(int(figure.replace(",", "")) for figure in line) for line in lines]
    (first, first_rate), (all_of_them, rate) = told[0], told[-1]
    later, seconds = all_of_them - first, all_of_them / rate - first / first_rate
    assert f"(benchmarks/{name})" in TEXT and "decoded with triton attention on cuda:0" in log
    assert f"one NVIDIA H200 wrote {all_of_them:,} new tokens at {rate:,} a second" in TEXT
    assert f"{later:,} of them in {seconds:.1f} seconds" in TEXT
    assert f"seconds, {later / seconds / 1000:.0f} thousand a second" in TEXT


def test_compiled_before_it_is_faster_from_the_start_on() -> None:
    name = "regenerate-again-h200-2026-11-30.log"
    log = (FOLDER / name).read_text(encoding="utf-8")
    tokens, rate = re.findall(r"([\d,]+) new tokens, ([\d,]+) tokens/s", log)[-1]
    seconds = int(tokens.replace(",", "")) / int(rate.replace(",", ""))
    assert f"(benchmarks/{name})" in TEXT and "complete: True" in log
    assert f"took {seconds:.1f} seconds in all, {rate} tokens a second from its start on" in TEXT


def test_the_demonstration_head_learnt_from_these_very_answers() -> None:
    config = "packages/jetflow-core/src/jetflow_core/data/smollm2-135m-head/config.json"
    provenance = json.loads((DOCS.parent / config).read_text("utf-8"))["jetflow"]["provenance"]
    run = json.loads((FOLDER / "train-one-gpu-2026-11-30.json").read_text(encoding="utf-8"))
    assert run["data"] == provenance["data"]
    assert f"{provenance['seconds'] / 60:.1f} minutes on two" in TEXT


def test_memory_and_speed_are_those_of_the_runs() -> None:
    run = json.loads((FOLDER / "train-one-gpu-2026-11-30.json").read_text(encoding="utf-8"))
    measured, estimate = run["memory"]["measured"], run["memory"]["estimate"]
    assert f"`--rows {run['train']['rows']}` on an H200" in TEXT and "H200" in run["device_name"]
    said = (
        f"{measured / 2**30:.1f} GiB, {measured / estimate:.2f} of the {estimate / 2**30:.1f} GiB"
    )
    assert f"torch measured {said} estimated" in TEXT
    one, two = (_last_step(name)["loss_rows_per_second"] for name in ("one-gpu", "two-gpus"))
    assert f"from {one:,.0f} loss rows a second on one H200, and from {two / one:.2f} times" in TEXT
