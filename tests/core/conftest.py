"""Shared by the tests of the core: plain text from transformers, tiny heads, and a tokenizer."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

_HIDDEN, _VOCAB, _BLOCK = 32, 50, 6


@pytest.fixture(scope="session")
def greedy() -> Callable[..., tuple[int, ...]]:
    """`greedy(model, prompt, count)`: new tokens of transformers' own greedy search.

    Options: those of its `generate`, such as eos_token_id (none) and min_new_tokens.
    """
    return _greedy


def _greedy(model: Any, prompt: Sequence[int], count: int, **options: Any) -> tuple[int, ...]:
    import torch

    out = model.generate(
        torch.tensor([list(prompt)]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=count, do_sample=False, pad_token_id=0, **{"eos_token_id": None, **options},
    )  # fmt: skip
    return tuple(out[0, len(prompt) :].tolist())


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer for the tiny models' 128 tokens, all of them plain text.

    Two thirds are single characters, the others pairs, so that a stop string may begin or end
    within a token.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pairs = [a + b for a in "abcdefgh" for b in "xyzw"]
    pieces = [*map(chr, range(33, 127)), "Ġ", "Ċ", *pairs]
    assert len(pieces) == 128
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def head_config() -> Callable[..., Any]:
    """Makes the config of a small causal head of 3 layers and depth 5; options replace fields."""
    return _head_config


def _head_config(**changes: Any) -> Any:
    from jetflow_core.head.config import HeadConfig

    fields: dict[str, Any] = {
        "hidden_size": _HIDDEN, "intermediate_size": 48, "num_layers": 3, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 10, "vocab_size": _VOCAB, "block_size": _BLOCK,
        "num_target_layers": 4, "target_layer_ids": (0, 2), "mask_token_id": 7, "rope_theta": 1e4,
        "max_position_embeddings": 128,
    }  # fmt: skip
    return HeadConfig(**{**fields, **changes})


@pytest.fixture(scope="session")
def new_head() -> Callable[..., Any]:
    """Makes a frozen head with random weights in float64: `new_head(seed=0, **config fields)`."""
    return _new_head


def _new_head(*, seed: int = 0, **changes: Any) -> Any:
    import torch
    from jetflow_core.head.model import DraftHead

    torch.manual_seed(seed)
    head = DraftHead(_head_config(**changes)).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.eval().requires_grad_(False)


@pytest.fixture(scope="session")
def target_matrices() -> tuple[Any, Any]:
    """Embedding and output matrix of an imagined target that fits `new_head`, in float64."""
    import torch

    generator = torch.Generator().manual_seed(1)
    shape = (2, _VOCAB, _HIDDEN)
    embedding, lm_head = torch.randn(shape, generator=generator, dtype=torch.float64)
    return embedding, lm_head


@pytest.fixture(scope="session")
def head_for_tiny_target() -> Callable[..., Any]:
    """Makes a random head for `tiny_target`, as if it were loaded; options replace its fields."""

    def make(**changes: Any) -> Any:
        from jetflow_core.head.checkpoint import HeadInfo, LoadedHead

        fits = {"hidden_size": 64, "vocab_size": 128, "target_layer_ids": (0, 1, 3)}
        return LoadedHead(_new_head(**{**fits, **changes}), HeadInfo(), Path("head"))

    return make


@pytest.fixture
def published_config() -> dict[str, Any]:
    """The config.json of a head as other programs write it; the test may change it."""
    return {
        "architectures": ["DFlashDraftModel"], "hidden_size": _HIDDEN, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
        "num_hidden_layers": 3, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "vocab_size": _VOCAB,
        "layer_types": ["full_attention"] * 3, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "block_size": _BLOCK, "num_target_layers": 4,
        "dflash_config": {
            "mask_token_id": 7, "target_layer_ids": [0, 2], "causal_head": True,
        },
    }  # fmt: skip


@pytest.fixture
def published_tensors() -> dict[str, Any]:
    """Random float32 weights that fit `published_config`; the test may change them."""
    import torch

    generator = torch.Generator().manual_seed(3)
    shapes = {"fc.weight": (_HIDDEN, 2 * _HIDDEN), "hidden_norm.weight": (_HIDDEN,),
              "norm.weight": (_HIDDEN,)}  # fmt: skip
    for i in range(3):
        shapes |= {
            f"layers.{i}.self_attn.q_proj.weight": (40, _HIDDEN),
            f"layers.{i}.self_attn.k_proj.weight": (20, _HIDDEN),
            f"layers.{i}.self_attn.v_proj.weight": (20, _HIDDEN),
            f"layers.{i}.self_attn.o_proj.weight": (_HIDDEN, 40),
            f"layers.{i}.self_attn.q_norm.weight": (10,),
            f"layers.{i}.self_attn.k_norm.weight": (10,),
            f"layers.{i}.mlp.gate_proj.weight": (48, _HIDDEN),
            f"layers.{i}.mlp.up_proj.weight": (48, _HIDDEN),
            f"layers.{i}.mlp.down_proj.weight": (_HIDDEN, 48),
            f"layers.{i}.input_layernorm.weight": (_HIDDEN,),
            f"layers.{i}.post_attention_layernorm.weight": (_HIDDEN,),
        }
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


@pytest.fixture
def published_folder(tmp_path: Path) -> Callable[..., Path]:
    """Writes a head's folder; nothing of this package takes part."""
    from safetensors.torch import save_file

    def write(raw: dict[str, Any], tensors: dict[str, Any]) -> Path:
        path = tmp_path / "head"
        path.mkdir()
        (path / "config.json").write_text(json.dumps(raw))
        save_file(tensors, path / "model.safetensors")
        return path

    return write
