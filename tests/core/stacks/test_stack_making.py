"""Stacks from folders, models and names; what is refused, and that it is refused in time."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.loading import TargetLoadError
from jetflow_core.stacks import (
    NAMED_SHAPES,
    DecoderStack,
    ExpertShape,
    Frequencies,
    KVPools,
    PackedRows,
    StackShape,
    load_stack,
    named_shape,
    random_stack,
    stack_of_model,
)
from jetflow_core.support import UnsupportedTargetError
from transformers import AutoConfig

TINY = StackShape(
    vocab_size=50, hidden_size=16, intermediate_size=24, num_layers=3, num_heads=4,
    num_kv_heads=2, head_dim=6, max_positions=40, rope_theta=1e4,
)  # fmt: skip
MIXED = replace(
    TINY, qkv_bias=True, output_bias=True, head_norms=True, tied=True,
    experts=ExpertShape(count=4, chosen=2, intermediate_size=8, dense_layers=(1,)),
)  # fmt: skip


def rows_of(count: int) -> PackedRows:
    return PackedRows(
        tokens=torch.arange(count), positions=torch.arange(count), slots=torch.arange(count)
    )


def pools_of(shape: StackShape, dtype: torch.dtype = torch.float32) -> KVPools:
    return KVPools.allocate(shape, pages=3, page=4, dtype=dtype, device="cpu")


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_a_folder_gives_the_stack_of_its_model(
    kind: str, tmp_path: Path, lively_model: Callable[..., Any]
) -> None:
    model = lively_model(kind, dtype=torch.float32)
    model.generation_config.eos_token_id = [7, 9]
    model.save_pretrained(tmp_path)
    loaded = load_stack(tmp_path, taps=(2,), dtype=torch.float32, context=100)
    made = stack_of_model(model, taps=(2,), context=100)
    assert loaded.shape == made.shape
    assert loaded.eos_token_ids == made.eos_token_ids == (7, 9)
    assert loaded.context_length == made.context_length == 100
    assert (loaded.taps, loaded.feature_size, loaded.vocab_size) == ((2,), 64, 128)
    kept = list(tensors_of(made.weights))
    assert len(kept) > 6 * made.shape.num_layers
    for a, b in zip(tensors_of(loaded.weights), kept, strict=True):
        assert torch.equal(a, b)
        assert not a.requires_grad and a.is_contiguous()


def tensors_of(holder: Any) -> Any:
    for field in fields(holder):
        value = getattr(holder, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if is_dataclass(each):
                yield from tensors_of(each)
            elif isinstance(each, torch.Tensor):
                yield each


def test_a_model_stays_as_it_is(lively_model: Callable[..., Any]) -> None:
    model = lively_model("llama", dtype=torch.float32)
    tokens = torch.tensor([[1, 2, 3]])
    before = model(tokens).logits
    stack = stack_of_model(model, dtype=torch.bfloat16)
    assert stack.dtype == torch.bfloat16
    assert torch.equal(model(tokens).logits, before)


@pytest.mark.parametrize("shape", [TINY, MIXED])
def test_random_weights_keep_values_finite_and_repeat(shape: StackShape) -> None:
    outputs = []
    for seed in (1, 1, 2):
        stack = random_stack(shape, dtype=torch.float32, taps=(0,), seed=seed)
        features = torch.full((5, 16), torch.nan)
        pools = pools_of(shape)
        hidden = stack.forward(rows_of(5), pools, lambda layer, q: q, features)
        assert features.isfinite().all()
        outputs.append(stack.logits(hidden))
        assert all(pool.view(12, 2, 6)[:5].abs().sum() > 0 for pool in pools.keys)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    assert outputs[0].isfinite().all() and outputs[0].std() > 0.1
    assert stack.eos_token_ids == ()
    assert (stack.lm_head is stack.embed_tokens) == shape.tied


@pytest.mark.parametrize("shape", [TINY, MIXED])
def test_no_shape_of_a_pass_depends_on_a_value(shape: StackShape) -> None:
    # On the meta device there are no values: whatever asked for one would fail.
    made = random_stack(shape, dtype=torch.bfloat16, taps=(2, 0))
    rope = Frequencies.plain(shape).tables(40, "meta")
    stack = DecoderStack(shape, on_meta(made.weights), rope, taps=made.taps)
    pools = KVPools.allocate(shape, pages=3, page=4, dtype=torch.bfloat16, device="meta")
    packed = PackedRows(
        **{
            name: torch.empty(5, dtype=torch.int64, device="meta")
            for name in ("tokens", "positions", "slots")
        }
    )
    features = torch.empty(5, 32, dtype=torch.bfloat16, device="meta")
    hidden = stack.forward(packed, pools, lambda layer, q: q, features)
    logits = stack.logits(hidden)
    assert logits.shape == (5, 50)
    assert logits.dtype == torch.bfloat16


def on_meta(holder: Any) -> Any:
    """A copy of frozen weights without their values."""
    changes = {}
    for field in fields(holder):
        value = getattr(holder, field.name)
        if isinstance(value, tuple):
            changes[field.name] = tuple(on_meta(each) for each in value)
        elif is_dataclass(value):
            changes[field.name] = on_meta(value)
        elif isinstance(value, torch.Tensor):
            changes[field.name] = value.to("meta")
    return replace(holder, **changes)


def test_a_wider_features_buffer_keeps_what_lies_beside() -> None:
    stack = random_stack(TINY, dtype=torch.float32, taps=(2, 0))
    wide = torch.full((4, 50), torch.nan)
    exact = torch.empty(4, 32)
    for buffer in (wide[:, 9:41], exact):
        stack.forward(rows_of(4), pools_of(TINY), lambda layer, q: q, buffer)
    assert torch.equal(wide[:, 9:41], exact)
    assert wide[:, :9].isnan().all() and wide[:, 41:].isnan().all()


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"mlp_bias": True}, "mlp_bias"),
    ("qwen3", {"hidden_act": "gelu"}, "activation 'gelu'; only 'silu'"),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "sliding"),
    ("llama", {"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised"),
    ("gpt2", {}, "'gpt2' is not supported"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "'dynamic'",
    ),
    (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
            }
        },
        "turns 0.5 of each head",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "message"), CONFIGS)
def test_what_a_stack_would_get_wrong_is_refused_before_its_weights_are_read(
    kind: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    AutoConfig.for_model(kind, **options).save_pretrained(tmp_path)
    # There are no weights in the folder: had they been asked for, the error would say so.
    with pytest.raises(UnsupportedTargetError, match=message):
        load_stack(tmp_path)


def test_a_folder_without_weights_or_with_absurd_sizes_is_refused(tmp_path: Path) -> None:
    config = AutoConfig.for_model("llama")
    config.save_pretrained(tmp_path)
    with pytest.raises(TargetLoadError, match="cannot load a target"):
        load_stack(tmp_path)
    with pytest.raises(ValueError, match="tap 32 is no layer"):
        load_stack(tmp_path, taps=(32,))
    with pytest.raises(ValueError, match="context is 4000, it must be 1 to 2048"):
        load_stack(tmp_path, context=4000)
    with pytest.raises(TargetLoadError, match=r"no config\.json"):
        load_stack(tmp_path / "nothing")


def test_a_checkpoint_whose_output_matrix_is_not_finite_is_refused(
    tmp_path: Path, tiny_model: Callable[..., Any]
) -> None:
    model = tiny_model("llama", dtype=torch.float32)
    model.lm_head.weight[3, 5] = torch.nan
    model.save_pretrained(tmp_path)
    with pytest.raises(TargetLoadError, match="lm_head hold values that are not finite"):
        load_stack(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0, .* at least 1"),
        ({"head_dim": 7}, "head_dim is 7, it must be even"),
        ({"num_heads": 3}, "num_heads is 3, .* multiple of the 2 key heads"),
        ({"rope_theta": 0.0}, r"rope_theta is 0\.0"),
        ({"vocab_size": True}, "vocab_size is True"),
    ],
)
def test_a_shape_out_of_range_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(TINY, **changes)


def test_more_experts_than_there_are_cannot_be_chosen() -> None:
    with pytest.raises(ValueError, match="chosen is 5, it must be at most the 4 experts"):
        ExpertShape(count=4, chosen=5, intermediate_size=8)


def test_names_of_shapes() -> None:
    assert list(NAMED_SHAPES) == ["qwen3-8b", "qwen3-30b-a3b", "smollm2-135m"]
    assert named_shape("qwen3-8b").head_dim == 128
    with pytest.raises(ValueError, match="'qwen4'; there are qwen3-8b, qwen3-30b-a3b, smollm2"):
        named_shape("qwen4")


def test_taps_and_buffers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="tap 3 is no layer of a model with layers 0 to 2"):
        random_stack(TINY, taps=(0, 3))
    with pytest.raises(ValueError, match=r"taps \[1, 1\] are not distinct"):
        random_stack(TINY, taps=(1, 1))
    stack = random_stack(TINY, dtype=torch.float32, taps=(1,))
    packed, pools, attend = rows_of(4), pools_of(TINY), lambda layer, q: q
    with pytest.raises(ValueError, match=r"layers \[1\] are tapped, so features must be given"):
        stack.forward(packed, pools, attend)
    with pytest.raises(
        ValueError, match=r"features must be \[4, 16\] torch.float32, got \[4, 17\]"
    ):
        stack.forward(packed, pools, attend, torch.empty(4, 17))
    with pytest.raises(ValueError, match=r"3 pools of keys for 2 layers"):
        pools.check(replace(TINY, num_layers=2), torch.float32)
    with pytest.raises(ValueError, match=r"\[pages, page, 4, 6\] .* got \[3, 4, 2, 6\]"):
        pools.check(replace(TINY, num_kv_heads=4), torch.float32)
    with pytest.raises(ValueError, match=r"keys of layer 0 must be torch.bfloat16"):
        pools.check(TINY, torch.bfloat16)
    with pytest.raises(ValueError, match="page must be at least 1, got 0"):
        KVPools.allocate(TINY, pages=1, page=0, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": torch.zeros(3, dtype=torch.int64)}, r"positions must be \[T\] like tokens"),
        ({"slots": torch.zeros(4, dtype=torch.int32)}, "slots must be torch.int64"),
        (
            {"tokens": torch.zeros(2, 2, dtype=torch.int64)},
            r"tokens must be \[T\] with T at least 1",
        ),
        ({"tokens": torch.zeros(0, dtype=torch.int64)}, r"with T at least 1, got \[0\]"),
        ({"positions": torch.zeros(4)}, "positions must be torch.int32 or torch.int64"),
    ],
)
def test_rows_that_do_not_fit_each_other_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(rows_of(4), **changes)
