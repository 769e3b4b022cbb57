"""The draft head against a forward written apart from it, and its files."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.head.checkpoint import HeadInfo, HeadLoadError, load_head, save_head
from jetflow_core.head.config import HeadConfig, HeadConfigError
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.head.model import DraftHead
from jetflow_core.head.published import parse_config, write_config
from safetensors.torch import load_file, save_file

HIDDEN, VOCAB, TAPS, BLOCK = 32, 50, (0, 2), 6


def _config(**changes: Any) -> HeadConfig:
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN, "intermediate_size": 48, "num_layers": 3, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 10, "vocab_size": VOCAB, "block_size": BLOCK,
        "num_target_layers": 4, "target_layer_ids": TAPS, "mask_token_id": 7, "rope_theta": 1e4,
        "max_position_embeddings": 128,
    }  # fmt: skip
    return HeadConfig(**{**fields, **changes})


def _head(config: HeadConfig, seed: int = 0) -> DraftHead:
    torch.manual_seed(seed)
    head = DraftHead(config).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.eval().requires_grad_(False)


def _matrices(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (VOCAB, HIDDEN)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))


def published_folder(path: Path, raw: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """A head's folder as other programs write it: nothing of this package takes part."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(raw))
    save_file(tensors, path / "model.safetensors")
    return path


def published_config() -> dict[str, Any]:
    return {
        "architectures": ["DFlashDraftModel"], "hidden_size": HIDDEN, "intermediate_size": 48,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 10,
        "num_hidden_layers": 3, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "vocab_size": VOCAB,
        "layer_types": ["full_attention"] * 3, "max_position_embeddings": 128,
        "tie_word_embeddings": False, "block_size": BLOCK, "num_target_layers": 4,
        "dflash_config": {
            "mask_token_id": 7, "target_layer_ids": list(TAPS), "causal_head": True,
        },
    }  # fmt: skip


def published_tensors(seed: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"fc.weight": (HIDDEN, 2 * HIDDEN), "hidden_norm.weight": (HIDDEN,),
              "norm.weight": (HIDDEN,)}  # fmt: skip
    for i in range(3):
        shapes |= {
            f"layers.{i}.self_attn.q_proj.weight": (40, HIDDEN),
            f"layers.{i}.self_attn.k_proj.weight": (20, HIDDEN),
            f"layers.{i}.self_attn.v_proj.weight": (20, HIDDEN),
            f"layers.{i}.self_attn.o_proj.weight": (HIDDEN, 40),
            f"layers.{i}.self_attn.q_norm.weight": (10,),
            f"layers.{i}.self_attn.k_norm.weight": (10,),
            f"layers.{i}.mlp.gate_proj.weight": (48, HIDDEN),
            f"layers.{i}.mlp.up_proj.weight": (48, HIDDEN),
            f"layers.{i}.mlp.down_proj.weight": (HIDDEN, 48),
            f"layers.{i}.input_layernorm.weight": (HIDDEN,),
            f"layers.{i}.post_attention_layernorm.weight": (HIDDEN,),
        }
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def independent_forward(
    w: dict[str, torch.Tensor], features: torch.Tensor, root: int, embedding: torch.Tensor,
    lm_head: torch.Tensor, *, causal: bool,
) -> torch.Tensor:  # fmt: skip
    """Logits of all slots, token by token and head by head, from the published description."""

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)

    def turned(x: torch.Tensor, position: int) -> torch.Tensor:
        half = x.shape[-1] // 2
        angles = [position / 1e4 ** (2 * i / x.shape[-1]) for i in range(half)]
        cos = torch.tensor([math.cos(a) for a in angles] * 2, dtype=x.dtype)
        sin = torch.tensor([math.sin(a) for a in angles] * 2, dtype=x.dtype)
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    context = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = torch.stack([embedding[root], *[embedding[7]] * (BLOCK - 1)])
    for i in range(3):
        part = {n.removeprefix(f"layers.{i}."): t for n, t in w.items() if f"layers.{i}." in n}
        inside = norm(x, part["input_layernorm.weight"])
        rows = torch.cat([context, inside])
        keys = (rows @ part["self_attn.k_proj.weight"].T).view(-1, 2, 10)
        keys = norm(keys, part["self_attn.k_norm.weight"])
        keys = torch.stack([turned(k, p) for p, k in enumerate(keys)])
        values = (rows @ part["self_attn.v_proj.weight"].T).view(-1, 2, 10)
        queries = (inside @ part["self_attn.q_proj.weight"].T).view(-1, 4, 10)
        queries = norm(queries, part["self_attn.q_norm.weight"])
        attended = []
        for j in range(BLOCK):
            seen = len(context) + (j + 1 if causal else BLOCK)
            q = turned(queries[j], len(context) + j)
            outs = []
            for h in range(4):
                weights = torch.softmax(keys[:seen, h // 2] @ q[h] / math.sqrt(10), 0)
                outs.append(weights @ values[:seen, h // 2])
            attended.append(torch.cat(outs))
        x = x + torch.stack(attended) @ part["self_attn.o_proj.weight"].T
        inside = norm(x, part["post_attention_layernorm.weight"])
        gate = inside @ part["mlp.gate_proj.weight"].T
        up = inside @ part["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ part["mlp.down_proj.weight"].T
    return norm(x, w["norm.weight"]) @ lm_head.T


@pytest.mark.parametrize("causal", [True, False])
def test_published_checkpoint_gives_the_logits_of_an_independent_forward(
    tmp_path: Path, causal: bool
) -> None:
    raw, tensors = published_config(), published_tensors()
    raw["dflash_config"]["causal_head"] = causal
    loaded = load_head(published_folder(tmp_path / "head", raw, tensors), dtype=torch.float64)
    embedding, lm_head = _matrices()
    features = torch.randn(9, 2 * HIDDEN, dtype=torch.float64)
    wide = {name: tensor.double() for name, tensor in tensors.items()}
    expected = independent_forward(wide, features, 5, embedding, lm_head, causal=causal)[1:]
    expected = expected.log_softmax(-1)
    drafter = HeadDrafter(loaded.head, embedding, lm_head, num_slots=1, capacity=64)
    drafter.begin(0, [1] * 10)
    for rows in (features[:4], features[4:5], features[5:]):
        drafter.observe(0, [1] * len(rows), rows)
    found = drafter.propose([0], [5], BLOCK - 1)[0]
    best = expected.topk(16, dim=-1)
    assert found.tokens.tolist() == best.indices.tolist()
    torch.testing.assert_close(
        torch.from_numpy(found.log_probs[:, 0].copy()), best.values, rtol=0, atol=2e-6
    )


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
def test_listed_spellings_mean_the_same(change: Any) -> None:
    raw = published_config()
    change(raw)
    assert parse_config(raw) == parse_config(published_config())


def test_silent_config_is_bidirectional() -> None:
    raw = published_config()
    del raw["dflash_config"]["causal_head"]
    assert parse_config(raw).causal is False


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
def test_unsupported_options_are_refused_by_name(name: str, value: object) -> None:
    raw = published_config() | {name: value}
    with pytest.raises(HeadConfigError, match=name):
        parse_config(raw)


@pytest.mark.parametrize("name", ["target_layer_ids", "mask_token_id"])
def test_taps_and_mask_token_are_never_guessed(name: str) -> None:
    raw = published_config()
    del raw["dflash_config"][name]
    with pytest.raises(HeadConfigError, match=name):
        parse_config(raw)


def test_contradicting_spellings_are_refused() -> None:
    raw = published_config() | {"is_causal": False}
    with pytest.raises(HeadConfigError, match="contradicts"):
        parse_config(raw)


def test_sliding_layers_that_hide_context_are_refused() -> None:
    raw = published_config() | {"layer_types": ["sliding_attention"] * 3, "sliding_window": 64}
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
def test_impossible_configs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(HeadConfigError):
        _config(**changes)


OWN = {"learned_mask": True, "mask_token_id": None, "normalize_taps": True, "path_rank": 8,
       "depth_offset_rows": BLOCK, "candidates": 5}  # fmt: skip


def test_own_format_is_read_back_as_written(tmp_path: Path) -> None:
    head = _head(_config(**OWN)).float()
    info = HeadInfo(target="t", tokenizer_sha256="ab", top1_by_depth=(0.5, 0.25),
                    provenance={"steps": 3})  # fmt: skip
    path = save_head(tmp_path / "head", head, info)
    assert parse_config(write_config(head.config)) == head.config
    loaded = load_head(path)
    assert loaded.config == head.config
    assert loaded.info == info
    for name, tensor in head.state_dict().items():
        assert torch.equal(loaded.head.state_dict()[name], tensor), name


def test_eight_bit_storage_keeps_each_weight_within_half_a_step(tmp_path: Path) -> None:
    head = _head(_config(**OWN)).float()
    loaded = load_head(save_head(tmp_path / "head", head, HeadInfo(), eight_bit=True))
    assert load_file(tmp_path / "head" / "model.safetensors")["fc.weight"].dtype == torch.int8
    for name, tensor in head.state_dict().items():
        found = loaded.head.state_dict()[name]
        if tensor.dim() == 2:
            step = tensor.abs().amax(1, keepdim=True) / 127
            assert bool(((found - tensor).abs() <= 0.5001 * step).all()), name
        else:
            assert torch.equal(found, tensor), name


def test_non_finite_weights_are_never_written_nor_read(tmp_path: Path) -> None:
    head = _head(_config()).float()
    head.norm.weight.data[3] = float("nan")
    with pytest.raises(ValueError, match=r"norm\.weight"):
        save_head(tmp_path / "head", head, HeadInfo())
    assert list(tmp_path.iterdir()) == []
    tensors = published_tensors()
    tensors["fc.weight"][0, 0] = float("inf")
    with pytest.raises(HeadLoadError, match=r"fc\.weight"):
        load_head(published_folder(tmp_path / "bad", published_config(), tensors))


def test_rewriting_a_head_leaves_only_the_new_one(tmp_path: Path) -> None:
    for seed in (1, 2):
        save_head(tmp_path / "head", _head(_config(), seed).float(), HeadInfo())
    assert [path.name for path in tmp_path.iterdir()] == ["head"]
    loaded = load_head(tmp_path / "head").head.fc.weight
    assert torch.equal(loaded, _head(_config(), 2).float().fc.weight)


def _broken(tmp_path: Path, fault: str) -> Path:
    folder = published_folder(tmp_path / "head", published_config(), published_tensors())
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
        return tmp_path / "absent"
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
def test_broken_folders_are_named(tmp_path: Path, fault: str, says: str) -> None:
    with pytest.raises(HeadLoadError, match=says):
        load_head(_broken(tmp_path, fault))
