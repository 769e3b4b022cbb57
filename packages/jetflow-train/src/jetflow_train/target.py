"""The frozen target: a dense Llama-type decoder read from a transformers model.

One small forward serves both users here, answering prompts over a static KV cache and capturing
features of packed sequences, so both see the same arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jetflow_core.loading import load_config, load_model
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

SUPPORTED = ("llama", "qwen2", "qwen3")


class UnsupportedTargetError(ValueError):
    """The target's architecture cannot be run by this package."""


class LayerWeights(NamedTuple):
    """Weights of one decoder layer; query/key/value and gate/up are each one matrix."""

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Tensor
    o_bias: Tensor | None
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetShape:
    """Sizes of the target that the arithmetic needs."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int


Rope = tuple[Tensor, Tensor]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm in at least fp32, in the order of rounding that transformers uses."""
    wide = x if x.dtype == torch.float64 else x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def project(
    x: Tensor, w: LayerWeights, rope: Rope, shape: TargetShape
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries ``[R, heads, T, dim]``, rotated keys and values ``[R, kv_heads, T, dim]``."""
    dim, heads, kv_heads = shape.head_dim, shape.num_heads, shape.num_kv_heads
    normed = rms_norm(x, w.input_norm, shape.rms_norm_eps)
    mixed = F.linear(normed, w.qkv, w.qkv_bias).unflatten(-1, (heads + 2 * kv_heads, dim))
    q, k, v = mixed.transpose(1, 2).split([heads, kv_heads, kv_heads], dim=1)
    if w.q_norm is not None and w.k_norm is not None:
        q = rms_norm(q, w.q_norm, shape.rms_norm_eps)
        k = rms_norm(k, w.k_norm, shape.rms_norm_eps)
    return _rotate(q, rope), _rotate(k, rope), v


def _rotate(x: Tensor, rope: Rope) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * rope[0] + torch.cat([-right, left], dim=-1) * rope[1]


def finish(x: Tensor, attended: Tensor, w: LayerWeights, shape: TargetShape) -> Tensor:
    """Output ``[R, T, hidden]`` of a layer from its input and its attention's result."""
    x = x + F.linear(attended, w.o, w.o_bias)
    gate, up = F.linear(rms_norm(x, w.post_norm, shape.rms_norm_eps), w.gate_up).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, w.down)


def full_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of all positions under an additive ``bias`` ``[R, 1, T, T]``; ``[R, T, width]``."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return out.transpose(1, 2).flatten(2)


def run_layer(
    x: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, bias: Tensor, shape: TargetShape
) -> Tensor:
    """One whole layer over ``[R, T, hidden]``."""
    q, k, v = project(x, w, (cos, sin), shape)
    return finish(x, full_attention(q, k, v, bias), w, shape)


def mask_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive form of a bool mask: 0 where True, -inf where False."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        ~mask, float("-inf")
    )


def attention_kernels(device: torch.device) -> AbstractContextManager[None]:
    """The attention kernels that take an additive mask without choosing a plan for each shape."""
    if device.type != "cuda":
        return nullcontext()
    context: AbstractContextManager[None] = sdpa_kernel(
        [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    return context


@dataclass(frozen=True, slots=True, eq=False)
class FrozenTarget:
    """Weights of a target on one device and in one type, none of them trainable."""

    shape: TargetShape
    layers: tuple[LayerWeights, ...]
    embedding: Tensor
    lm_head: Tensor
    final_norm: Tensor
    cos: Tensor
    sin: Tensor
    stop_tokens: tuple[int, ...]
    fingerprint: dict[str, str]
    layer_fn: Callable[..., Tensor] = run_layer

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.embedding.dtype

    def rope(self, positions: Tensor) -> Rope:
        """Cosines and sines ``[R, 1, T, head_dim]`` of int64 ``positions`` ``[R, T]``."""
        return self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)

    def normed(self, x: Tensor) -> Tensor:
        """Final norm of ``x``: what the lm_head reads."""
        return rms_norm(x, self.final_norm, self.shape.rms_norm_eps)

    @torch.no_grad()
    def capture(
        self, tokens: Tensor, positions: Tensor, mask: Tensor, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Features and final hidden states of packed rows.

        Args:
            tokens: int64 ``[R, T]``.
            positions: int64 ``[R, T]``, restarting with each document.
            mask: bool ``[R, T, T]``, True where a position (row) sees another (column); every
                position must see itself.
            taps: layers whose outputs are kept.

        Returns:
            Features ``[R, T, taps * hidden]`` in the order of ``taps``, and the normed last hidden
            states ``[R, T, hidden]``.
        """
        cos, sin = self.rope(positions)
        bias = mask_bias(mask.unsqueeze(1), self.dtype)
        x, kept = self.embedding[tokens], {}
        with attention_kernels(self.device):
            for index, weights in enumerate(self.layers):
                x = self.layer_fn(x, weights, cos, sin, bias, self.shape)
                if index in taps:
                    kept[index] = x
        return torch.cat([kept[tap] for tap in taps], dim=-1), self.normed(x)


def load_target(path: Path | str, device: torch.device, dtype: torch.dtype) -> FrozenTarget:
    """The target in a transformers folder, on ``device`` in ``dtype``.

    Raises:
        TargetLoadError: nothing there can be loaded; the message says why in one line.
        UnsupportedTargetError: the folder holds another architecture than the supported ones.
    """
    config = load_config(path)
    _check_supported(config)
    return from_model(load_model(path, config, dtype=dtype), device)


def from_model(model: Any, device: torch.device) -> FrozenTarget:
    """The target of a loaded transformers causal LM (see ``load_target``)."""
    config = model.config
    _check_supported(config)
    inner = model.model
    dtype = inner.embed_tokens.weight.dtype
    shape = _shape(config)
    angles = torch.arange(shape.max_positions)[:, None].float() * inner.rotary_emb.inv_freq.float()
    angles, scaling = torch.cat([angles, angles], dim=-1), inner.rotary_emb.attention_scaling

    def put(value: Tensor) -> Tensor:
        return value.detach().to(device=device, dtype=dtype).contiguous()

    embedding = put(inner.embed_tokens.weight)
    tied = model.lm_head.weight.data_ptr() == inner.embed_tokens.weight.data_ptr()
    return FrozenTarget(
        shape=shape,
        layers=tuple(_layer(layer, put) for layer in inner.layers),
        embedding=embedding,
        lm_head=embedding if tied else put(model.lm_head.weight),
        final_norm=put(inner.norm.weight),
        cos=put(angles.cos() * scaling),
        sin=put(angles.sin() * scaling),
        stop_tokens=_stop_tokens(model),
        fingerprint=_fingerprint(config, inner.embed_tokens.weight),
    )


def _check_supported(config: Any) -> None:
    if config.model_type not in SUPPORTED:
        raise UnsupportedTargetError(
            f"target architecture {config.model_type!r} is not one of {', '.join(SUPPORTED)}"
        )
    if getattr(config, "use_sliding_window", False):
        raise UnsupportedTargetError("targets with sliding-window attention cannot be trained for")
    if getattr(config, "mlp_bias", False):
        raise UnsupportedTargetError("targets with biases in the MLP cannot be trained for")


def _shape(config: Any) -> TargetShape:
    rope = getattr(config, "rope_parameters", None) or {}
    return TargetShape(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None)
        or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else config.rope_theta),
        # Longer tables would only cost memory: rows of training data never reach this.
        max_positions=min(config.max_position_embeddings, 16384),
    )


def _layer(layer: Any, put: Callable[[Tensor], Tensor]) -> LayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    biased = attention.q_proj.bias is not None
    return LayerWeights(
        input_norm=put(layer.input_layernorm.weight),
        qkv=put(torch.cat([part.weight for part in parts])),
        qkv_bias=put(torch.cat([part.bias for part in parts])) if biased else None,
        q_norm=put(attention.q_norm.weight) if hasattr(attention, "q_norm") else None,
        k_norm=put(attention.k_norm.weight) if hasattr(attention, "k_norm") else None,
        o=put(attention.o_proj.weight),
        o_bias=put(attention.o_proj.bias) if attention.o_proj.bias is not None else None,
        post_norm=put(layer.post_attention_layernorm.weight),
        gate_up=put(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])),
        down=put(mlp.down_proj.weight),
    )


def _stop_tokens(model: Any) -> tuple[int, ...]:
    generation = getattr(model, "generation_config", None)
    stop = getattr(generation, "eos_token_id", None)
    if stop is None:
        stop = model.config.eos_token_id
    if stop is None:
        return ()
    return tuple(stop) if isinstance(stop, (list, tuple)) else (int(stop),)


def _fingerprint(config: Any, embedding: Tensor) -> dict[str, str]:
    fields = (
        "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size",
        "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings",
    )  # fmt: skip
    text = repr([(name, getattr(config, name, None)) for name in fields])
    table = embedding.detach().to(device="cpu", dtype=torch.float32).contiguous().numpy()
    return {
        "config_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "embedding_sha256": hashlib.sha256(table.tobytes()).hexdigest(),
    }
