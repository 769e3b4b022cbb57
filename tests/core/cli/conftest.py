"""A tiny target on disk with a tokenizer and a head: the whole command line in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TINY_TAPS = (0, 1, 3)
HeadMaker = Callable[..., Path]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Any]) -> Path:
    """A saved float32 Qwen3 of 4 layers, vocabulary 128, context 256, with an ASCII tokenizer."""
    import torch

    folder = tmp_path_factory.mktemp("target") / "tiny"
    tiny_model("qwen3", dtype=torch.float32, eos_token_id=0).save_pretrained(folder)
    save_tiny_tokenizer(folder)
    return folder


def save_tiny_tokenizer(folder: Path, extra: str = "") -> None:
    """One token a character: ``<eos>``, printable ASCII, space and line break."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    characters = ["<eos>", *map(chr, range(33, 127)), "Ġ", "Ċ", *extra]
    vocabulary = {character: index for index, character in enumerate(characters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="session")
def tiny_head_config() -> Callable[..., Any]:
    """Makes the config of a head for ``tiny_folder``; options replace its fields."""
    return _tiny_head_config


def _tiny_head_config(**options: Any) -> Any:
    from jetflow_core.head.config import HeadConfig

    fields: dict[str, Any] = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 128,
        "block_size": 6,
        "num_target_layers": 4,
        "target_layer_ids": TINY_TAPS,
        "mask_token_id": 127,
        "rope_theta": 1e4,
        "max_position_embeddings": 256,
        "candidates": 6,
    }
    return HeadConfig(**{**fields, **options})


@pytest.fixture
def make_head(tmp_path: Path, tiny_folder: Path) -> HeadMaker:
    """Writes a random head for ``tiny_folder``: ``make_head(name, info=..., **config)``."""
    import torch
    from jetflow_core.head.checkpoint import HeadInfo, save_head
    from jetflow_core.head.model import DraftHead

    def make(name: str = "head", *, info: Any = None, **options: Any) -> Path:
        torch.manual_seed(1)
        head = DraftHead(_tiny_head_config(**options))
        return save_head(tmp_path / name, head, info or HeadInfo(target="tiny"))

    return make


@pytest.fixture
def jetflow(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in this process; gives exit code, standard output, standard error."""
    from jetflow_core.cli import run

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call
