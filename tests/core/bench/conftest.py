"""Fixtures of the benchmarks' tests: a tiny target and a head on disk, and a few prompts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_VOCAB = 300


@pytest.fixture(scope="session")
def tiny_target_folder(tiny_model: Callable[..., Any], tmp_path_factory: Any) -> Path:
    """A random Qwen3 target of 300 tokens in float32, saved with a byte-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder: Path = tmp_path_factory.mktemp("tiny") / "target"
    model = tiny_model("qwen3", dtype=torch.float32, vocab_size=_VOCAB)
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: index for index, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_head_folder(tiny_target_folder: Path) -> Path:
    """A random head of depth 5 for that target."""
    import torch
    from jetflow_core.head.checkpoint import HeadInfo, save_head
    from jetflow_core.head.config import HeadConfig
    from jetflow_core.head.model import DraftHead

    config = HeadConfig(
        hidden_size=64, intermediate_size=64, num_layers=1, num_heads=4, num_kv_heads=2,
        head_dim=16, vocab_size=_VOCAB, block_size=6, num_target_layers=4,
        target_layer_ids=(0, 3), mask_token_id=7, max_position_embeddings=256, candidates=150,
    )  # fmt: skip
    torch.manual_seed(0)
    head = DraftHead(config)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return save_head(tiny_target_folder.parent / "head", head, HeadInfo())


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    """Four short prompts."""
    path = tmp_path / "few.jsonl"
    texts = ["one two", "seven and eight", "b", "what comes next?"]
    path.write_text(
        "".join(json.dumps({"id": f"p{i}", "prompt": t}) + "\n" for i, t in enumerate(texts))
    )
    return path
