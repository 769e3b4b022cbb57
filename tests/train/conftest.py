"""What tests of the trainer share: a target and runs that take a second."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RUNS = Path(__file__).with_name("process_run.py")


@pytest.fixture(scope="session")
def new_run() -> Callable[..., Any]:
    """``process_run.trainer_in``: makes a trainer in a folder, in this process."""
    made: Callable[..., Any] = runpy.run_path(str(RUNS))["trainer_in"]
    return made


@pytest.fixture(scope="session")
def save_words() -> Callable[..., None]:
    """`save_words(folder, count, stop=None)`: a tokenizer of the words w0, w1, ...

    Its chat template ends a prompt with w0; a `stop` token comes after the last word.
    """
    return _save_words


def _save_words(folder: Path, count: int, stop: str | None = None) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [f"w{i}" for i in range(count)] + ([stop] if stop else [])
    vocabulary = {name: token for token, name in enumerate(names)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"eos_token": stop} if stop else {}
    made = PreTrainedTokenizerFast(tokenizer_object=words, **special)
    made.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %} w0"
    made.save_pretrained(folder)


@pytest.fixture(scope="session")
def study_home(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[..., Any],
    save_words: Callable[..., None],
) -> Path:
    """What studies need: target, data `words` and `corpus`, prompts `one.jsonl` and `two.jsonl`."""
    import numpy as np
    import torch
    from jetflow_train.shards import Corpus, save_shard, write_manifest
    from jetflow_train.target import load_target

    folder = tmp_path_factory.mktemp("study")
    tiny_model("llama", dtype=torch.float32, eos_token_id=127).save_pretrained(folder / "target")
    save_words(folder / "target", 128)
    target = load_target(folder / "target", torch.device("cpu"), torch.float32)
    for seed, name in enumerate(("words", "corpus")):
        rng = np.random.default_rng(seed)
        corpus = Corpus.of(
            [rng.integers(0, 127, 3) for _ in range(12)],
            [rng.integers(0, 127, 8 + n) for n in range(12)],
            np.zeros(12, np.float32),
            np.zeros(12, np.bool_),
        )
        (folder / name).mkdir()
        shards = [save_shard(folder / name, 0, corpus, 128)]
        write_manifest(folder / name, {"target": target.fingerprint, "shards": shards})
    for name, words in (("one", ("w1 w2", "w3", "w4 w5")), ("two", ("w6 w7", "w8"))):
        text = "".join(json.dumps({"prompt": each}) + "\n" for each in words)
        (folder / f"{name}.jsonl").write_text(text)
    return folder
