"""The reference of the fused cache write equals transformers' own pieces, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jetflow_kernels.round import norm_rope_kv_write, norm_rope_kv_write_reference


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_queries_keys_and_values_are_those_of_qwen3(dtype: torch.dtype) -> None:
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    config = qwen3.Qwen3Config(
        hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        num_hidden_layers=1, attention_bias=True, rope_parameters={
            "rope_type": "default", "rope_theta": 1e4
        },
    )  # fmt: skip
    torch.manual_seed(0)
    attention = qwen3.Qwen3Attention(config, 0)
    for norm in (attention.q_norm, attention.k_norm):
        torch.nn.init.normal_(norm.weight, 1.0, 0.3)
    attention = attention.to(dtype).requires_grad_(False)
    hidden = torch.randn(1, 5, 48).to(dtype)
    positions = torch.tensor([700, 0, 3, 9000, 3])
    rotary = qwen3.Qwen3RotaryEmbedding(config)
    cos, sin = rotary(hidden, positions[None])
    q, k, v = (getattr(attention, name)(hidden) for name in ("q_proj", "k_proj", "v_proj"))
    qkv = torch.cat((q, k, v), dim=-1)[0]
    wanted_q, wanted_k = qwen3.apply_rotary_pos_emb(
        attention.q_norm(q.unflatten(-1, (-1, 32))).transpose(1, 2),
        attention.k_norm(k.unflatten(-1, (-1, 32))).transpose(1, 2),
        cos,
        sin,
    )
    # A table in float32, as a model would make it once, with half of each line.
    table_cos, table_sin = (x[0, :, :16] for x in rotary(hidden.float(), torch.arange(9001)[None]))
    k_pool, v_pool = torch.full((2, 3, 4, 2, 32), torch.nan, dtype=dtype)
    slots = torch.tensor([11, 4, -1, 0, 7])
    found = norm_rope_kv_write_reference(
        qkv, positions, table_cos, table_sin, slots, k_pool, v_pool,
        q_weight=attention.q_norm.weight, k_weight=attention.k_norm.weight,
        eps=config.rms_norm_eps,
    )  # fmt: skip
    assert torch.equal(found, wanted_q[0].transpose(0, 1))
    kept = slots >= 0
    for pool, wanted in (
        (k_pool, wanted_k[0].transpose(0, 1)), (v_pool, v[0].unflatten(-1, (-1, 32)))
    ):  # fmt: skip
        flat = pool.flatten(0, 1)
        assert torch.equal(flat[slots[kept]], wanted[kept])
        assert int(flat.isnan().all(-1).all(-1).sum()) == 12 - 4


def good() -> dict[str, object]:
    """Arguments of 3 rows with 4 query heads and 2 key heads."""
    return {
        "qkv": torch.randn(3, 8 * 16),
        "positions": torch.tensor([0, 4, 2]),
        "cos": torch.ones(5, 8),
        "sin": torch.zeros(5, 8),
        "slots": torch.tensor([3, -1, 9]),
        "k_pool": torch.zeros(2, 4, 2, 16),
        "v_pool": torch.zeros(2, 4, 2, 16),
    }


def test_heads_are_normed_and_their_pairs_turned_as_complex_numbers() -> None:
    arguments, weights = good(), torch.rand(2, 16)
    angles = torch.rand(5, 8) * 6
    arguments |= {"cos": angles.cos(), "sin": angles.sin()}
    q = norm_rope_kv_write_reference(
        **arguments, q_weight=weights[0], k_weight=weights[1], eps=0.25
    )
    heads = arguments["qkv"].double().unflatten(1, (8, 16))[:, :6]
    normed = heads / (heads.square().mean(2, keepdim=True) + 0.25).sqrt()
    normed[:, :4] *= weights[0]
    normed[:, 4:] *= weights[1]
    turn = torch.polar(torch.ones(3, 8, 1), angles[arguments["positions"]][:, :, None])
    pairs = torch.complex(normed[..., :8], normed[..., 8:]) * turn.mT
    wanted = torch.cat((pairs.real, pairs.imag), dim=2).float()
    assert torch.allclose(q, wanted[:, :4], rtol=1e-6, atol=1e-6)
    assert torch.allclose(arguments["k_pool"][0, 3], wanted[0, 4:], rtol=1e-6, atol=1e-6)


def test_slots_that_are_none_are_not_written() -> None:
    arguments = good()
    out = torch.empty(3, 4, 16)
    assert norm_rope_kv_write_reference(**arguments, out=out) is out
    qkv = arguments["qkv"]
    # Angles of 0 and no norms: everything stays as it is.
    assert torch.equal(out.flatten(1), qkv[:, :64])
    for name, first in (("k_pool", 64), ("v_pool", 96)):
        flat = arguments[name].flatten(0, 1).flatten(1)
        assert torch.equal(flat[3], qkv[0, first : first + 32])
        assert flat[[0, 1, 2, 4, 5, 6, 7]].eq(0).all()


def test_positions_outside_the_table_show() -> None:
    arguments = good()
    arguments["positions"] = torch.tensor([0, 5, -1], dtype=torch.int32)
    q = norm_rope_kv_write_reference(**arguments)
    assert q.isnan().all(2).all(1).tolist() == [False, True, True]


WEIGHT = torch.ones(16)


@pytest.mark.parametrize("op", [norm_rope_kv_write, norm_rope_kv_write_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": torch.zeros(3, 128).double()}, r"qkv must be .* got torch.float64"),
        ({"qkv": torch.zeros(3, 129)}, r"qkv must have \(Hq \+ 2 \* 2\) \* 16 .* got 129"),
        ({"qkv": torch.zeros(3, 64)}, r"Hq at least 1, got 64"),
        ({"qkv": torch.zeros(128, 3).T}, r"qkv must have no gaps .* \(1, 3\)"),
        ({"positions": torch.zeros(2).long()}, r"positions must have shape \[3\], got \[2\]"),
        ({"positions": torch.zeros(3)}, r"positions must be torch.int32 or torch.int64"),
        ({"slots": torch.zeros(3, dtype=torch.int32)}, r"slots must be torch.int64"),
        ({"cos": torch.zeros(5, 16)}, r"cos must have shape \[any, 8\], got \[5, 16\]"),
        ({"cos": torch.zeros(0, 8), "sin": torch.zeros(0, 8)}, r"at least 1 position, got 0"),
        ({"sin": torch.zeros(4, 8)}, r"sin must have shape \[5, 8\], got \[4, 8\]"),
        ({"k_pool": torch.zeros(2, 4, 2, 16).half()}, r"k_pool must be torch.float32"),
        ({"v_pool": torch.zeros(2, 4, 3, 16)}, r"v_pool must have shape \[2, 4, 2, 16\]"),
        ({"k_pool": torch.zeros(2, 4, 2, 24), "v_pool": torch.zeros(2, 4, 2, 24)},
         r"head dim D of k_pool must be a multiple of 16, got 24"),
        ({"k_pool": torch.zeros(2, 4, 2, 272), "v_pool": torch.zeros(2, 4, 2, 272)},
         r"head dim D of k_pool must be in 16..256, got 272"),
        ({"v_pool": torch.zeros(2, 4, 16, 2).mT}, r"v_pool must have no gaps"),
        ({"q_weight": WEIGHT}, r"k_weight must be there if q_weight is, got None"),
        ({"k_weight": WEIGHT}, r"q_weight must be there if k_weight is, got None"),
        ({"q_weight": WEIGHT[:8], "k_weight": WEIGHT}, r"q_weight must have shape \[16\]"),
        ({"q_weight": WEIGHT, "k_weight": WEIGHT.half()}, r"k_weight must be torch.float32"),
        ({"eps": -1e-6}, r"eps must be at least 0, got -1e-06"),
        ({"out": torch.zeros(3, 3, 16)}, r"out must have shape \[3, 4, 16\], got \[3, 3, 16\]"),
    ],
)  # fmt: skip
def test_wrong_arguments(
    op: Callable[..., object], change: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        op(**{**good(), **change})


def test_the_compiled_kernel_refuses_tensors_of_the_cpu() -> None:
    with pytest.raises(ValueError, match="CUDA device, got tensors on cpu"):
        norm_rope_kv_write(**good())
