"""What tests of the trainer share: a target and runs that take a second."""

from __future__ import annotations

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
