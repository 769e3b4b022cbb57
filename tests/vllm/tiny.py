"""A tiny random target with a tokenizer, and a random draft head for it with every part."""

from __future__ import annotations

from pathlib import Path

import torch
from jetflow_core.head.checkpoint import HeadInfo, save_head
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
HIDDEN = 64
LAYERS = 3
LENGTH = 1024

TEXT = (
    "A draft tree holds the likeliest continuations of a text; one pass of the target says which "
    "of them it would have written itself. The walk begins at the root and follows the target. "
) * 4


def make_target(folder: Path, kind: str = "qwen3") -> Path:
    """Writes the target, its weights wide enough for logits that differ."""
    config = AutoConfig.for_model(
        kind,
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=96,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=LENGTH,
        initializer_range=0.1,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    bytes_first = Tokenizer(models.BPE())
    bytes_first.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_first.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bytes_first.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bytes_first, eos_token="<end>")


def head_config(**options: object) -> HeadConfig:
    """A head of two layers with a path term, a bridge, a mask vector, and offsets."""
    parts: dict[str, object] = {
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "vocab_size": VOCABULARY,
        "block_size": 8,
        "num_target_layers": LAYERS,
        # Not in the order in which they run.
        "target_layer_ids": (2, 0),
        "mask_token_id": None,
        "max_position_embeddings": LENGTH,
        "learned_mask": True,
        "normalize_taps": True,
        "input_bridge": True,
        "path_rank": 8,
        "path_context": True,
        "candidates": 16,
        "depth_offset_rows": 8,
    }
    return HeadConfig(**{**parts, **options})


def make_head(folder: Path, config: HeadConfig) -> Path:
    """Writes a random head none of whose parts is zero."""
    torch.manual_seed(1)
    head = DraftHead(config)
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.5, 1.5)
            else:
                parameter.normal_(std=0.1)
    return save_head(folder, head, HeadInfo(target="a tiny random target"))
