"""The commands of training: what a user gets wrong is one line, before hours of work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jetflow_core.cli import run, run_app
from jetflow_train.cli import build
from jetflow_train.files import check_folder, write_json
from jetflow_train.prompts import read_prompts
from jetflow_train.schedule import Horizon

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_text(json.dumps({"prompt": "hi"}))
    (tmp_path / "file").touch()
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.C"}})
    )
    (tmp_path / "evil" / "evil.py").write_text("open('trap', 'w').close()\nclass C: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")

    def go(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(arguments)
        out, err = capsys.readouterr()
        return code, out, err

    return go


TRAIN = "train --target none --data d --out o"
STEPS = f"{TRAIN} --max-steps 1"
DATA = "data regenerate --target none --out o --prompts a/x.jsonl"
CASES = {
    f"{STEPS} --target /none": "cannot load a target from '/none': no config.json there",
    f"{STEPS} --target evil": "cannot load a target from 'evil'",
    f"{DATA} --target /none": "cannot load the tokenizer of a target from '/none'",
    TRAIN: "give --max-minutes or --max-steps",
    f"{STEPS} --max-minutes 1": "give --max-minutes or --max-steps",
    f"{TRAIN} --max-minutes nan": "the horizon must be above 0",
    f"{TRAIN} --max-minutes inf": "the horizon must be above 0",
    f"{TRAIN} --max-steps 0": "max-steps 0 is out of range: at least 1",
    f"{STEPS} --layers 0": "layers 0 is out of range",
    f"{STEPS} --block-size 1": "block-size 1 is out of range",
    f"{STEPS} --path-rank -1": "path-rank -1 is out of range",
    f"{STEPS} --learning-rate inf": "learning_rate must be above 0 and finite",
    f"{STEPS} --rows 1.5": "rows '1.5' is no whole number",
    f"{STEPS} --seed -1": "seed -1 is out of range",
    f"{STEPS} --eval-limit 0": "eval-limit 0 is out of range",
    f"{STEPS} --eval-prompts a/x.jsonl b/x.jsonl": "two prompt sets are called 'x'",
    f"{STEPS} --eval-prompts none.jsonl": "cannot read the prompts of none.jsonl",
    f"{STEPS} --eval-temperatures -1": "eval-temperature -1.0 is out of range: 0 (greedy), or",
    f"{STEPS} --eval-temperatures 0 0.7 0.7": "eval-temperature 0.7 comes twice",
    f"{STEPS} --eval-temperatures 0_1": "eval-temperatures '0_1' is no number",
    f"{STEPS} --resume": "o holds no run to resume",
    f"{STEPS} --out file": "file is no folder",
    f"{STEPS} --out /proc/o": "cannot write",
    f"{DATA} --limit -1": "limit -1 is out of range: at least 1",
    f"{DATA} --shard-rows 0": "shard-rows 0 is out of range: at least 1",
    f"{DATA} --limit 1.5": "no whole number",
    f"{DATA} --temperatures nan": "temperature nan is out of range",
    f"{DATA} --temperatures 0_1": "temperatures '0_1' is no number",
    f"{DATA} --temperatures 1e-320": "is out of range: 0 (greedy), or 0.001 to 100",
    f"{DATA} --temperatures 0.7 0.7": "temperature 0.7 comes twice",
    f"{DATA} --max-seconds 1_0": "max-seconds '1_0' is no number",
    f"{STEPS} --learning-rate 0_1": "learning-rate '0_1' is no number",
    f"{STEPS} --loss-temperature 1e-320": "is out of range: 0.01 to 100",
    f"{STEPS} --anchors 1000000000": "anchors 1000000000 is out of range: 1 to 65536",
    f"{DATA} --prompts none.jsonl": "cannot read the prompts of none.jsonl",
    f"{DATA} --prompts b/x.jsonl": "two prompt files are called 'x.jsonl'",
    f"{DATA} --out file": "file is no folder",
}


@pytest.mark.parametrize("line", CASES)
def test_one_line_and_exit_code_2(line: str, call: Call, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call(*_last_wins(line.split()))
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert CASES[line] in err
    assert sorted(tmp_path.rglob("*")) == before


def _last_wins(words: list[str]) -> list[str]:
    """The words with only the last of an option that comes twice; prompt files add up."""
    first = 2 if words[0] == "data" else 1
    options: dict[str, list[str]] = {}
    name = ""
    for word in words[first:]:
        if word.startswith("--"):
            name = word
            options[name] = options.get(name, []) if word == "--prompts" else []
        else:
            options[name].append(word)
    files = options.get("--prompts", [])
    if files[1:] == ["none.jsonl"]:
        options["--prompts"] = files[1:]
    return [*words[:first], *(word for key, values in options.items() for word in (key, *values))]


def test_a_run_is_not_started_over(call: Call, tmp_path: Path) -> None:
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "state.pt").touch()
    code, _, err = call(*STEPS.split())
    assert code == 2
    assert "o already holds a run: go on with --resume" in err


def test_the_packages_own_command_says_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(build(), TRAIN.split(), name="jetflow-train") == 2
    err = capsys.readouterr().err
    assert err.startswith("jetflow-train: ")
    assert len(err.splitlines()) == 1


def test_a_horizon_names_its_options() -> None:
    with pytest.raises(ValueError, match=r"--max-minutes.*--max-steps"):
        Horizon()


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is no folder"):
        check_folder(tmp_path / "file" / "run")
    with pytest.raises(ValueError, match="cannot make the folder"):
        write_json(tmp_path / "file" / "run" / "x.json", {})


def test_lines_behind_the_limit_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}\n\n{"prompt": "b"}\nno JSON\n')
    assert read_prompts([file], limit=2) == ["a", "b"]
    with pytest.raises(ValueError, match=r"p\.jsonl:4"):
        read_prompts([file])
