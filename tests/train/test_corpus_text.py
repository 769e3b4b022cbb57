"""`jetflow data corpus`: what somebody else wrote as training data, marked as such."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.cli import run_app
from jetflow_train.cli import build
from jetflow_train.corpus_text import foreign_folders
from jetflow_train.shards import DataMismatchError, load_corpus, read_manifest
from jetflow_train.target import load_target

LINES = [
    {"prompt": "w1 w2", "answer": "w3 w4 w5 w6"},
    {"prompt": "w1", "answer": "w7 w8 w9"},
    {"prompt": "w1", "answer": "w2 " * 20},
    {"prompt": "w1 " * 30, "answer": "w2"},
]
SIZES = ("--max-new-tokens", "12", "--max-prompt-tokens", "16")


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[..., Any],
    save_words: Callable[..., None],
) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "target"
    tiny_model("llama", dtype=torch.float32, eos_token_id=127).save_pretrained(folder)
    save_words(folder, 127, stop="<stop>")
    return folder


@pytest.fixture
def call(
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[int, str]]:
    (tmp_path / "target").symlink_to(target)
    write(tmp_path / "lines.jsonl", LINES)
    monkeypatch.chdir(tmp_path)

    def go(*words: str) -> tuple[int, str]:
        capsys.readouterr()
        code = run_app(build(), [*words, "--target", "target"], name="jetflow-train")
        return code, capsys.readouterr().err

    return go


def write(file: Path, lines: list[dict[str, str]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_lines_become_sequences_that_end_with_the_targets_stop_token(
    call: Callable[..., tuple[int, str]], target: Path
) -> None:
    code, err = call("data", "corpus", "--prompts", "lines.jsonl", "--out", "data", *SIZES)
    assert code == 0, err
    assert "2 sequences, 14 tokens with prompts, 2 lines skipped because they are too long" in err
    manifest = read_manifest(Path("data"))
    assert manifest is not None
    assert (manifest["origin"], manifest["complete"]) == ("corpus", True)
    assert manifest["jobs"] == {"asked": 4, "skipped": 2, "answered": 2, "missing": 0}
    known = load_target(target, torch.device("cpu"), torch.float32).fingerprint
    found = load_corpus([Path("data")], known)
    assert found.sequence(0).tolist() == [1, 2, 0, 3, 4, 5, 6, 127]
    assert found.sequence(1).tolist() == [1, 0, 7, 8, 9, 127]
    assert found.prompt_len.tolist() == [3, 2]
    assert found.finished.all()
    assert np.isnan(found.temperature).all()
    assert foreign_folders([Path("data")]) == [Path("data")]


def test_other_lines_or_the_targets_own_text_do_not_mix_with_it(
    call: Callable[..., tuple[int, str]],
) -> None:
    words = ("data", "corpus", "--prompts", "lines.jsonl", "--out", "data", *SIZES)
    assert call(*words)[0] == 0
    stamp = Path("data/manifest.json").stat().st_mtime_ns
    assert call(*words)[0] == 0
    assert Path("data/manifest.json").stat().st_mtime_ns == stamp
    code, err = call(*words, "--limit", "1")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "data was made differently (prompts:" in err
    code, err = call("data", "regenerate", "--prompts", "lines.jsonl", "--out", "data")
    assert code == 2
    assert "data was made differently" in err


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"prompt": "w1"}, 'lines.jsonl:2: needs a text under "answer"'),
        ({"prompt": "w1", "answer": "  "}, 'lines.jsonl:2: needs a text under "answer"'),
        ({"answer": "w1"}, "lines.jsonl:2"),
        ({"prompt": "w1", "answer": "\ud800"}, "its answer holds half a character"),
    ],
)
def test_a_line_without_an_answer_is_refused_before_anything_is_loaded(
    line: dict[str, str],
    why: str,
    call: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("jetflow_train.run.open_target")
    write(Path("lines.jsonl"), [LINES[0], line])
    code, err = call("data", "corpus", "--prompts", "lines.jsonl", "--out", "data")
    assert (code, len(err.splitlines())) == (2, 1), err
    assert why in err
    assert not Path("data").exists()


def test_lines_that_are_all_too_long_are_refused(call: Callable[..., tuple[int, str]]) -> None:
    write(Path("lines.jsonl"), LINES[2:])
    code, err = call("data", "corpus", "--prompts", "lines.jsonl", "--out", "data", *SIZES)
    assert code == 2
    assert "no line of at most 16 tokens of prompt and 12 of answer in lines.jsonl" in err


def test_training_on_it_says_so(call: Callable[..., tuple[int, str]]) -> None:
    assert call("data", "corpus", "--prompts", "lines.jsonl", "--out", "data", *SIZES)[0] == 0
    code, err = call(
        *"train --data data --out run --max-steps 1 --layers 1 --block-size 4".split(),
        *"--path-rank 2 --rows 1 --width 16 --anchors 2 --chunks 1".split(),
    )
    assert code == 0, err
    assert "data holds what somebody else wrote, not the target's own text" in err.splitlines()


def test_data_without_the_mark_is_the_targets_own(tmp_path: Path) -> None:
    for name, mark in (("old", {}), ("new", {"origin": "target"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(
            json.dumps({"format": "jetflow-data/1", "target": {}, "shards": [], **mark})
        )
    assert foreign_folders([tmp_path / "old", tmp_path / "new"]) == []
    with pytest.raises(DataMismatchError):
        (tmp_path / "old" / "manifest.json").write_text("{}")
        foreign_folders([tmp_path / "old"])
