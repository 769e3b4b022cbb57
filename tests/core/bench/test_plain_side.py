"""The plain side of the lossless check decodes greedily, whatever a checkpoint's defaults say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.bench.reference import answer
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target

_COUNT = 16


def _answer(folder: Path) -> Any:
    job = {"target": str(folder), "dtype": "float32", "device": "cpu",
           "max_new_tokens": _COUNT, "prompts": ["one two"]}  # fmt: skip
    return answer(job)["answers"][0]


@pytest.fixture
def plain(tiny_target_folder: Path) -> Any:
    return _answer(tiny_target_folder)


@pytest.mark.parametrize("name", [
    "suppress_tokens", "begin_suppress_tokens", "bad_words_ids", "no_repeat_ngram_size",
    "repetition_penalty", "sequence_bias", "min_length", "forced_eos_token_id", "num_beams",
])  # fmt: skip
def test_defaults_of_the_target_change_nothing(
    tiny_target_folder: Path, tmp_path: Path, plain: Any, name: str
) -> None:
    tokens = plain["tokens"]
    values: dict[str, Any] = {
        "suppress_tokens": tokens, "begin_suppress_tokens": tokens[:1],
        "bad_words_ids": [[token] for token in tokens[:3]], "no_repeat_ngram_size": 1,
        "repetition_penalty": 5.0, "sequence_bias": [[[tokens[0]], -50.0]], "min_length": 30,
        "forced_eos_token_id": 9, "num_beams": 3,
    }  # fmt: skip
    folder = tmp_path / "target"
    shutil.copytree(tiny_target_folder, folder)
    file = folder / "generation_config.json"
    known = json.loads(file.read_text())
    file.write_text(json.dumps(known | {name: values[name]}))
    assert _answer(folder)["tokens"] == tokens
    # As the other side of the comparison, which applies none of them either.
    target = Target.load(folder, dtype=torch.float32)
    params = SamplingParams(max_new_tokens=_COUNT)
    found = Engine(target, None).generate(plain["prompt"], params, TreeOptions(budget=1))
    assert list(found.tokens) == tokens


def test_the_end_of_a_text_stays_the_targets_own(
    tiny_target_folder: Path, tmp_path: Path, plain: Any
) -> None:
    stop = plain["tokens"][3]
    folder = tmp_path / "target"
    shutil.copytree(tiny_target_folder, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [stop]}))
    first = plain["tokens"].index(stop)
    assert _answer(folder)["tokens"] == plain["tokens"][: first + 1]
