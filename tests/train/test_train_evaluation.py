"""A run evaluates at the temperatures that it is given, between its steps and at its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.cli import run
from jetflow_core.head.checkpoint import load_head
from jetflow_train.plots import plot_run, tau_lines
from jetflow_train.run import run_train
from jetflow_train.settings import TrainSettings
from jetflow_train.sinks.jsonl import read_lines
from jetflow_train.temperatures import with_greedy


def settings_in(home: Path, out: Path, **options: Any) -> TrainSettings:
    return TrainSettings(
        data=(home / "words",), target=home / "target", out=out, max_steps=2, rows=4, width=24,
        anchors=3, chunks=1, layers=1, block_size=4, path_rank=4, candidate_pool=20, taps=(0, 3),
        eval_prompts=(home / "one.jsonl", home / "two.jsonl"), **options,
    )  # fmt: skip


@pytest.mark.slow
def test_sampled_answers_stand_beside_greedy_ones(study_home: Path, tmp_path: Path) -> None:
    out, said = tmp_path / "run", list[str]()
    # The second step has time of training before it.
    settings = settings_in(study_home, out, eval_seconds=1e-9, track=("tensorboard",))
    assert run_train(settings, report=said.append) == out / "head"
    entries = read_lines(out / "metrics.jsonl")
    (figures,) = (entry["values"] for entry in entries if entry["kind"] == "evaluation")
    names = [
        f"{name}{at}" for at in ("", " at 0.7") for name in ("one", "two", "all")
    ]  # fmt: skip
    assert figures.keys() == {f"tau/{n}/{t}" for n in names for t in ("chain", "16", "64")}
    assert tau_lines(entries)["two at 0.7, 64"] == ([1], [figures["tau/two at 0.7/64"]])
    assert plot_run(out, tmp_path / "run.svg").read_text().count("all at 0.7, chain") == 1
    result = json.loads((out / "result.json").read_text())["evaluation"]
    assert result.keys() == {"one", "one at 0.7", "two", "two at 0.7"}
    info = load_head(out / "head").info
    assert info.provenance["evaluation"] == result
    # What the doctor holds a head against is greedy, as its own answers are.
    rows = [result[name]["path"] for name in ("one", "two")]
    right, places = (sum(row[key][0] for row in rows) for key in ("top1_right", "top1_places"))
    assert info.top1_by_depth[0] == round(right / places, 4)
    assert "eval-temperatures = [0.0, 0.7]" in (out / "run.toml").read_text()
    assert any(line.startswith("two at 0.7 path: chain ") for line in said)


@pytest.mark.slow
def test_without_greedy_answers_between_steps_they_are_there_at_the_end(
    study_home: Path, tmp_path: Path
) -> None:
    said: list[str] = []
    asked: dict[str, Any] = {"eval_temperatures": (1.0,), "eval_seconds": 1e-9, "eval_limit": 1}
    run_train(settings_in(study_home, tmp_path / "run", **asked), report=said.append)
    entries = read_lines(tmp_path / "run" / "metrics.jsonl")
    (figures,) = (entry["values"] for entry in entries if entry["kind"] == "evaluation")
    assert {name.split("/")[1] for name in figures} == {"one at 1", "two at 1", "all at 1"}
    info = load_head(tmp_path / "run" / "head").info
    assert list(info.provenance["evaluation"]) == ["one", "one at 1", "two", "two at 1"]
    assert len(info.top1_by_depth) == 3


def test_two_sets_of_one_name_are_refused_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("a.jsonl", "a at 0.7.jsonl")]
    words = ["train", "--data", "d", "--out", str(tmp_path / "o"), "--max-steps", "1"]
    assert run([*words, "--eval-prompts", *files]) == 2
    err = capsys.readouterr().err
    assert "two evaluations are called 'a at 0.7'; rename one of the files" in err
    settings = TrainSettings(data=(), out=tmp_path / "o", eval_temperatures=())
    with pytest.raises(ValueError, match="eval-temperatures are missing: give at least one"):
        settings.check()


def test_greedy_comes_first_and_once() -> None:
    assert with_greedy((0.7, 0.0, 1.0)) == (0.0, 0.7, 1.0)
    assert with_greedy((0.7,)) == (0.0, 0.7)
