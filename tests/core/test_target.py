import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.session import CachedSession
from jetflow_core.support import UnsupportedTargetError, check_supported
from jetflow_core.target import Target
from transformers import AutoConfig

KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe")
PROMPT = [5, 77, 12, 12, 99, 3, 41]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tap_is_the_output_of_its_layer(kind: str, tiny_model: Callable[..., Any]) -> None:
    plain = tiny_model(kind)
    last_output = []
    plain.model.layers[3].register_forward_hook(lambda *args: last_output.append(args[-1][0]))
    states = plain(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states
    target = Target.from_model(tiny_model(kind), taps=(3, 0, 1))
    # The prompt's last token is never prefilled, so one more makes all of them rows.
    features = CachedSession(target, capacity=20).prefill(0, [*PROMPT, 0]).features
    assert features.shape == (len(PROMPT), target.feature_size)
    last, first, second = features.split(target.hidden_size, dim=1)
    torch.testing.assert_close(first, states[1][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(second, states[2][0], rtol=0, atol=1e-12)
    torch.testing.assert_close(last, last_output[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(plain.model.norm(last), states[4][0], rtol=0, atol=1e-12)
    assert (last - states[4][0]).abs().max() > 0.1


def test_a_folder_gives_the_same_target_as_the_model(
    tmp_path: Path, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model("llama", dtype=torch.float32, tie_word_embeddings=True)
    model.generation_config.eos_token_id = [7, 9]
    model.save_pretrained(tmp_path)
    loaded = Target.load(tmp_path, taps=(2,), dtype=torch.float32)
    made = Target.from_model(model, taps=(2,))
    out = [CachedSession(target, capacity=20).prefill(0, PROMPT) for target in (loaded, made)]
    assert torch.equal(out[0].features, out[1].features)
    assert (loaded.hidden_size, loaded.vocab_size, loaded.num_layers) == (64, 128, 4)
    assert (loaded.num_heads, loaded.num_kv_heads, loaded.head_dim) == (4, 2, 16)
    assert (loaded.context_length, loaded.feature_size) == (256, 64)
    assert (loaded.dtype, loaded.device.type) == (torch.float32, "cpu")
    assert loaded.eos_token_ids == made.eos_token_ids == (7, 9)
    assert loaded.embed_tokens is loaded.lm_head
    assert loaded.lm_head.shape == (128, 64)
    assert not loaded.lm_head.requires_grad


def test_without_eos_nothing_ends_an_answer(tiny_target: Target) -> None:
    assert tiny_target.eos_token_ids == ()


def test_one_eos_of_the_config(tiny_model: Callable[..., Any]) -> None:
    assert Target.from_model(tiny_model("qwen3", eos_token_id=11)).eos_token_ids == (11,)


def test_the_tokenizer_is_asked_for_only_when_used(tiny_target: Target) -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        _ = tiny_target.tokenizer


@pytest.mark.parametrize("tap", [-1, 4])
def test_a_tap_outside_the_model_is_refused(tap: int, tiny_model: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=f"tap {tap} .* layers 0 to 3"):
        Target.from_model(tiny_model("qwen3"), taps=(0, tap))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("qwen3_next", {}, "layer 0 .*'linear_attention'.*'full_attention'"),
        ("jamba", {}, "layer 0 .*'(linear_attention|mamba)'"),
        ("gpt_oss", {}, "layer 0 .*'sliding_attention'"),
        ("gpt2", {}, "'gpt2' is not supported; supported are llama, qwen2, qwen3, qwen3_moe"),
        ("mistral", {}, "'mistral' is not supported"),
        ("t5", {}, "t5 is an encoder-decoder"),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": 8},
            "layer 2 .*'sliding_attention'",
        ),
        ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 8}, "window of 8"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        (
            "llama",
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "short_factor": [1.0] * 64,
                    "long_factor": [2.0] * 64,
                    "original_max_position_embeddings": 64,
                }
            },
            "'longrope'",
        ),
        ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ],
)
def test_what_a_tree_would_get_wrong_is_refused_by_name(
    kind: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnsupportedTargetError, match=message):
        check_supported(AutoConfig.for_model(kind, **options))


@pytest.mark.parametrize("rope", ["linear", "yarn", "llama3"])
def test_positions_scaled_by_constants_are_supported(rope: str) -> None:
    parameters = {
        "rope_type": rope,
        "rope_theta": 1e4,
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = AutoConfig.for_model("llama")
    config.rope_parameters = parameters
    check_supported(config)
    config.rope_parameters = {**parameters, "rope_type": "dynamic"}
    with pytest.raises(UnsupportedTargetError):
        check_supported(config)


def test_a_model_is_refused_before_its_weights_are_read(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_next", "layer_types": ["linear_attention"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}))
    (tmp_path / "model.safetensors").write_bytes(b"no weights at all")
    with pytest.raises(UnsupportedTargetError, match="linear_attention"):
        Target.load(tmp_path)


def test_a_model_at_hand_is_refused_as_it_is(tiny_model: Callable[..., Any]) -> None:
    model = tiny_model("llama")
    model.config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(UnsupportedTargetError, match="'dynamic'"):
        Target.from_model(model)
    assert model.config._attn_implementation == "sdpa"


def test_a_broken_checkpoint_gives_one_clear_line(
    tmp_path: Path, tiny_model: Callable[..., Any]
) -> None:
    with pytest.raises(ValueError, match=r"no config\.json there") as missing:
        Target.load(tmp_path / "nowhere")
    tiny_model("qwen3", dtype=torch.float32).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="cannot load a target from") as truncated:
        Target.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "never-heard-of"}')
    with pytest.raises(ValueError, match="never-heard-of") as unknown:
        Target.load(tmp_path)
    for error in (missing, truncated, unknown):
        assert "\n" not in str(error.value)


def test_a_checkpoint_without_some_weights_is_refused(
    tmp_path: Path, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model("qwen3", dtype=torch.float32)
    state = model.state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"lacks 1 tensors .*layers\.1\.mlp\.up_proj"):
        Target.load(tmp_path)
