"""The frozen target: a dense Llama-type decoder read from a transformers model."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jetflow_core.loading import load_config, load_model
from torch import Tensor

from jetflow_train.sight import Documents, Sight
from jetflow_train.target_layer import (
    LayerWeights,
    Rope,
    TargetShape,
    attention_kernels,
    mask_bias,
    rms_norm,
    run_layer,
)

MOST_POSITIONS = 16384
SUPPORTED = ("llama", "qwen2", "qwen3")


class UnsupportedTargetError(ValueError):
    """The target's architecture cannot be run by this package."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AnyTarget(ABC):
    """What training reads of a frozen target, wherever the weights of its layers lie."""

    shape: TargetShape
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
        self, tokens: Tensor, positions: Tensor, seen: Tensor | Documents, taps: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Features and final hidden states of packed rows.

        Args:
            tokens: int64 ``[R, T]``.
            positions: int64 ``[R, T]``, restarting with each document.
            seen: bool ``[R, T, T]``, True where a position (row) sees another (column), every
                position must see itself; or the documents of the rows (``packs_documents``).
            taps: layers whose outputs are kept.

        Returns:
            Features ``[R, T, taps * hidden]`` in the order of ``taps``, and the normed last hidden
            states ``[R, T, hidden]``.
        """
        cos, sin = self.rope(positions)
        sight = mask_bias(seen.unsqueeze(1), self.dtype) if isinstance(seen, Tensor) else seen
        x, kept = self.embedding[tokens], {}
        with attention_kernels(self.device):
            for index in range(self.shape.num_layers):
                x = self.layer_output(index, x, cos, sin, sight)
                if index in taps:
                    kept[index] = x
        return torch.cat([kept[tap] for tap in taps], dim=-1), self.normed(x)

    @abstractmethod
    def layer_output(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, sight: Sight) -> Tensor:
        """Output ``[R, T, hidden]`` of layer ``index`` for ``x``, through ``layer_fn``."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FrozenTarget(AnyTarget):
    """Weights of a target on one device and in one type, none of them trainable."""

    layers: tuple[LayerWeights, ...]

    def layer_output(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, sight: Sight) -> Tensor:
        """Output of one layer."""
        return self.layer_fn(x, self.layers[index], cos, sin, sight, self.shape)


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


def positions(config: Any) -> int:
    """Longest sequence that a target of this config is run on, in tokens."""
    # Longer tables would only cost memory: rows of training data never reach this.
    return min(int(config.max_position_embeddings), MOST_POSITIONS)


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
        max_positions=positions(config),
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
