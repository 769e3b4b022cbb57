"""The files of a draft head: every spelling is understood or refused, nothing half-read."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.head.checkpoint import HeadInfo, HeadLoadError, load_head, save_head
from jetflow_core.head.config import HeadConfig, HeadConfigError
from jetflow_core.head.model import DraftHead
from jetflow_core.head.published import parse_config, write_config
from safetensors.torch import load_file, save_file

HIDDEN, VOCAB, BLOCK = 32, 50, 6
Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Write = Callable[[Config, Tensors], Path]


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw["dflash_config"].update(
            causal=raw["dflash_config"].pop("causal_head")
        ),
        lambda raw: raw["dflash_config"].pop("causal_head") and raw.update(is_causal=True),
        lambda raw: raw.update(raw.pop("dflash_config")),
        lambda raw: raw.update(architectures=["Qwen3DFlashDraftModel"]),
        lambda raw: raw.update(rope_parameters={"rope_theta": raw.pop("rope_theta")}),
        lambda raw: raw["dflash_config"].pop("causal_head")
        and raw.update(layer_types=["sliding_attention"] * 3, sliding_window=4096),
    ],
)  # fmt: skip
def test_listed_spellings_mean_the_same(change: Any, published_config: Config) -> None:
    raw = deepcopy(published_config)
    change(raw)
    assert parse_config(raw) == parse_config(published_config)


def test_silent_config_is_bidirectional(published_config: Config) -> None:
    del published_config["dflash_config"]["causal_head"]
    assert parse_config(published_config).causal is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("candidate_selector", {"rank": 4}), ("attention_conv", True), ("markov_rank", 256),
        ("final_logit_softcapping", 30.0), ("output_multiplier", 2.0), ("hidden_act", "gelu"),
        ("attention_bias", True), ("quantization_config", {"bits": 4}), ("num_experts", 8),
        ("target_hidden_size", 64), ("rope_scaling", {"rope_type": "yarn"}),
        ("architectures", ["LlamaForCausalLM"]),
    ],
)  # fmt: skip
def test_unsupported_options_are_refused_by_name(
    name: str, value: object, published_config: Config
) -> None:
    raw = published_config | {name: value}
    with pytest.raises(HeadConfigError, match=name):
        parse_config(raw)


@pytest.mark.parametrize("name", ["target_layer_ids", "mask_token_id"])
def test_taps_and_mask_token_are_never_guessed(name: str, published_config: Config) -> None:
    del published_config["dflash_config"][name]
    with pytest.raises(HeadConfigError, match=name):
        parse_config(published_config)


def test_contradicting_spellings_are_refused(published_config: Config) -> None:
    raw = published_config | {"is_causal": False}
    with pytest.raises(HeadConfigError, match="contradicts"):
        parse_config(raw)


def test_sliding_layers_that_hide_context_are_refused(published_config: Config) -> None:
    raw = published_config | {"layer_types": ["sliding_attention"] * 3, "sliding_window": 64}
    with pytest.raises(HeadConfigError, match="sliding_attention"):
        parse_config(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_heads": 3}, {"head_dim": 9}, {"target_layer_ids": ()}, {"target_layer_ids": (0, 4)},
        {"target_layer_ids": (1, 1)}, {"mask_token_id": VOCAB}, {"mask_token_id": None},
        {"block_size": 1}, {"path_rank": -1}, {"candidates": 0}, {"depth_offset_rows": 2},
    ],
)  # fmt: skip
def test_impossible_configs_are_refused(
    changes: dict[str, Any], head_config: Callable[..., HeadConfig]
) -> None:
    with pytest.raises(HeadConfigError):
        head_config(**changes)


OWN = {"learned_mask": True, "mask_token_id": None, "normalize_taps": True, "path_rank": 8,
       "depth_offset_rows": BLOCK, "candidates": 5}  # fmt: skip


def test_own_format_is_read_back_as_written(
    tmp_path: Path, new_head: Callable[..., DraftHead]
) -> None:
    head = new_head(**OWN).float()
    info = HeadInfo(target="t", tokenizer_sha256="ab", top1_by_depth=(0.5, 0.25),
                    provenance={"steps": 3})  # fmt: skip
    path = save_head(tmp_path / "head", head, info)
    assert parse_config(write_config(head.config)) == head.config
    loaded = load_head(path)
    assert loaded.config == head.config
    assert loaded.info == info
    for name, tensor in head.state_dict().items():
        assert torch.equal(loaded.head.state_dict()[name], tensor), name


def test_eight_bit_storage_keeps_each_weight_within_half_a_step(
    tmp_path: Path, new_head: Callable[..., DraftHead]
) -> None:
    head = new_head(**OWN).float()
    loaded = load_head(save_head(tmp_path / "head", head, HeadInfo(), eight_bit=True))
    assert load_file(tmp_path / "head" / "model.safetensors")["fc.weight"].dtype == torch.int8
    for name, tensor in head.state_dict().items():
        found = loaded.head.state_dict()[name]
        if tensor.dim() == 2:
            step = tensor.abs().amax(1, keepdim=True) / 127
            assert bool(((found - tensor).abs() <= 0.5001 * step).all()), name
        else:
            assert torch.equal(found, tensor), name


def test_non_finite_weights_are_never_written_nor_read(
    tmp_path: Path,
    published_config: Config,
    published_tensors: Tensors,
    published_folder: Write,
    new_head: Callable[..., DraftHead],
) -> None:
    head = new_head().float()
    head.norm.weight.data[3] = float("nan")
    with pytest.raises(ValueError, match=r"norm\.weight"):
        save_head(tmp_path / "head", head, HeadInfo())
    assert list(tmp_path.iterdir()) == []
    tensors = published_tensors
    tensors["fc.weight"][0, 0] = float("inf")
    with pytest.raises(HeadLoadError, match=r"fc\.weight"):
        load_head(published_folder(published_config, tensors))


def test_rewriting_a_head_leaves_only_the_new_one(
    tmp_path: Path, new_head: Callable[..., DraftHead]
) -> None:
    for seed in (1, 2):
        save_head(tmp_path / "head", new_head(seed=seed).float(), HeadInfo())
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
    loaded = load_head(tmp_path / "head").head.fc.weight
    assert torch.equal(loaded, new_head(seed=2).float().fc.weight)


def _break(folder: Path, fault: str) -> Path:
    weights = folder / "model.safetensors"
    if fault == "no config":
        (folder / "config.json").unlink()
    elif fault == "no json":
        (folder / "config.json").write_text("{")
    elif fault == "no weights":
        weights.unlink()
    elif fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif fault == "no folder":
        return folder / "absent"
    else:
        tensors = load_file(weights)
        if fault == "missing tensor":
            del tensors["norm.weight"]
        elif fault == "extra tensor":
            tensors["markov_w1"] = torch.zeros(2, 2)
        else:
            tensors["fc.weight"] = torch.zeros(HIDDEN, HIDDEN)
        save_file(tensors, weights)
    return folder


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("no config", "config.json is missing"), ("no json", "no JSON"),
        ("no weights", "model.safetensors is missing"), ("truncated", "cannot be read"),
        ("no folder", "does not exist"), ("missing tensor", r"missing: norm\.weight"),
        ("extra tensor", "not supported: markov_w1"), ("shape", r"fc\.weight has shape"),
    ],
)  # fmt: skip
def test_broken_folders_are_named(
    fault: str,
    says: str,
    published_config: Config,
    published_tensors: Tensors,
    published_folder: Write,
) -> None:
    with pytest.raises(HeadLoadError, match=says):
        load_head(_break(published_folder(published_config, published_tensors), fault))
