"""The weights of a transformers model, fused for a stack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from jetflow_core.stacks.shape import StackShape
from jetflow_core.stacks.weights import DenseWeights, ExpertWeights, LayerWeights, StackWeights


def fused_weights(
    model: Any,
    layers: Iterable[Any],
    shape: StackShape,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
) -> StackWeights:
    """The weights of a causal LM; those that need no change of type or place are shared with it.

    Args:
        model: A transformers model of one of the supported types.
        layers: Its decoder layers, taken one by one.
        shape: Made from its config.
        device: Where the weights go.
        dtype: Their type.
    """
    return _Fuse(shape, torch.device(device), dtype).weights(model, layers)


class _Fuse:
    """Where fused weights go, and in which type."""

    def __init__(self, shape: StackShape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype

    def weights(self, model: Any, layers: Iterable[Any]) -> StackWeights:
        base = model.base_model
        embed_tokens = self._one(base.embed_tokens)
        head = model.get_output_embeddings()
        return StackWeights(
            embed_tokens=embed_tokens,
            layers=tuple(self._layer(index, each) for index, each in enumerate(layers)),
            norm=self._one(base.norm),
            lm_head=embed_tokens if self._shape.tied else self._one(head),
        )

    def _layer(self, index: int, layer: Any) -> LayerWeights:
        attention, shape = layer.self_attn, self._shape
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        return LayerWeights(
            input_norm=self._one(layer.input_layernorm),
            qkv=self._joined([part.weight for part in parts]),
            qkv_bias=self._joined([part.bias for part in parts]) if shape.qkv_bias else None,
            q_norm=self._one(attention.q_norm) if shape.head_norms else None,
            k_norm=self._one(attention.k_norm) if shape.head_norms else None,
            output=self._one(attention.o_proj),
            output_bias=self._put(attention.o_proj.bias) if shape.output_bias else None,
            mlp_norm=self._one(layer.post_attention_layernorm),
            mlp=self._mlp(index, layer.mlp),
        )

    def _mlp(self, index: int, mlp: Any) -> DenseWeights | ExpertWeights:
        experts = self._shape.experts_of(index)
        if experts is None:
            return DenseWeights(
                gate_up=self._joined([mlp.gate_proj.weight, mlp.up_proj.weight]),
                down=self._one(mlp.down_proj),
            )
        return ExpertWeights(
            router=self._one(mlp.gate),
            gate_up=self._put(mlp.experts.gate_up_proj),
            down=self._put(mlp.experts.down_proj),
            chosen=experts.chosen,
            normalised=experts.normalised,
        )

    def _one(self, module: Any) -> Tensor:
        return self._put(module.weight)

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([self._put(part) for part in parts])

    def _put(self, weight: Tensor) -> Tensor:
        return weight.detach().to(device=self._device, dtype=self._dtype).contiguous()
