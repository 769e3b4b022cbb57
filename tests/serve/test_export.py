"""An exported head is what vLLM's dflash reads; a head that it would run wrongly is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.head.checkpoint import HeadInfo, HeadLoadError, load_head, save_head
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from jetflow_serve.commands import export as export_command
from jetflow_serve.export import NotExportable, export_for_vllm
from safetensors.torch import load_file
from transformers import AutoConfig

SHAPE: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 6,
    "vocab_size": 50,
    "block_size": 8,
    "num_target_layers": 12,
    "target_layer_ids": (1, 5, 10),
    "mask_token_id": 49,
    "rope_theta": 12345.0,
    "max_position_embeddings": 512,
}
MakeHead = Callable[..., Path]


@pytest.fixture
def make_head(tmp_path: Path) -> MakeHead:
    def make(**options: Any) -> Path:
        torch.manual_seed(0)
        config = HeadConfig(**{**SHAPE, **options})
        return save_head(tmp_path / "head", DraftHead(config), HeadInfo(target="somebody"))

    return make


# The published layout of two layers: the whole list, and no more.
LAYER = (
    "input_layernorm", "post_attention_layernorm", "mlp.down_proj", "mlp.gate_proj", "mlp.up_proj",
    "self_attn.k_norm", "self_attn.k_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.q_proj", "self_attn.v_proj",
)  # fmt: skip
TENSORS = {"fc.weight", "hidden_norm.weight", "norm.weight"} | {
    f"layers.{layer}.{part}.weight" for layer in (0, 1) for part in LAYER
}


def test_the_layout_is_vllms(make_head: MakeHead, tmp_path: Path) -> None:
    out = export_for_vllm(make_head(), tmp_path / "out" / "vllm")
    assert sorted(file.name for file in out.iterdir()) == ["config.json", "model.safetensors"]
    assert set(load_file(out / "model.safetensors")) == TENSORS
    raw = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert raw["architectures"] == ["DFlashDraftModel"]
    assert raw["dflash_config"]["causal"] is True
    assert raw["dflash_config"]["mask_token_id"] == 49
    assert raw["dflash_config"]["target_layer_ids"] == [1, 5, 10]
    # At the top level this key would overrule dflash_config.causal.
    assert "is_causal" not in raw and "jetflow" not in raw


def test_transformers_reads_the_config_as_vllm_will(make_head: MakeHead, tmp_path: Path) -> None:
    config = AutoConfig.from_pretrained(export_for_vllm(make_head(), tmp_path / "out"))
    assert config.model_type == "qwen3"
    assert config.head_dim == 6
    assert config.rope_parameters["rope_theta"] == 12345.0
    assert config.num_key_value_heads == 2
    assert config.dflash_config["causal"] is True
    assert getattr(config, "is_causal", None) is None


def test_a_bidirectional_head_stays_one(make_head: MakeHead, tmp_path: Path) -> None:
    out = export_for_vllm(make_head(causal=False), tmp_path / "out")
    raw = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert raw["dflash_config"]["causal"] is False


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_and_meaning_survive(make_head: MakeHead, tmp_path: Path, dtype: str) -> None:
    source = make_head()
    before = load_head(source)
    after = load_head(export_for_vllm(source, tmp_path / "out", dtype=dtype))
    assert after.config == before.config
    kept = load_file(tmp_path / "out" / "model.safetensors")
    for name, tensor in before.head.state_dict().items():
        assert kept[name].dtype == getattr(torch, dtype)
        assert torch.equal(kept[name], tensor.to(kept[name].dtype))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"learned_mask": True, "mask_token_id": None}, "a learned mask vector"),
        ({"path_rank": 3}, "a path term of rank 3"),
        ({"normalize_taps": True}, "tap normalisation"),
        ({"depth_offset_rows": 8}, "learned depth offsets"),
        ({"draft_shift": True}, "shifted slots"),
    ],
)
def test_what_vllm_cannot_run_is_refused(
    make_head: MakeHead, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NotExportable, match=reason):
        export_for_vllm(make_head(**options), tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["head"]


def test_every_reason_is_named_at_once(make_head: MakeHead, tmp_path: Path) -> None:
    head = make_head(path_rank=2, normalize_taps=True)
    with pytest.raises(NotExportable, match="path term of rank 2; tap normalisation"):
        export_for_vllm(head, tmp_path / "out")


def test_bad_arguments_leave_nothing_behind(make_head: MakeHead, tmp_path: Path) -> None:
    head = make_head()
    with pytest.raises(ValueError, match=r"dtype 'int8' is not one of float32, bfloat16, float16"):
        export_for_vllm(head, tmp_path / "out", dtype="int8")
    with pytest.raises(HeadLoadError, match="no head at"):
        export_for_vllm(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match="out exists already"):
        export_for_vllm(head, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_the_command_says_where_it_wrote(
    make_head: MakeHead, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export_command.command(make_head(), tmp_path / "out", dtype="bfloat16")
    assert str(tmp_path / "out") in capsys.readouterr().out
    assert (tmp_path / "out" / "model.safetensors").is_file()
