"""The layers of a draft head, fused as a decoder stack's are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jetflow_core.head.layers import HeadLayer
from jetflow_core.head.model import DraftHead


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeadLayerWeights:
    """One layer of a draft head."""

    input_norm: Tensor
    """``[hidden]``."""
    qkv: Tensor
    """``[(heads + 2 kv_heads) * dim, hidden]``: queries, then keys, then values."""
    context: Tensor
    """The last ``3 kv_heads * dim`` rows of ``qkv``: keys and values of context rows behind so many
    queries that nobody asks for, since the cache write takes rows with queries."""
    q_norm: Tensor
    """``[dim]``."""
    k_norm: Tensor
    """``[dim]``."""
    output: Tensor
    """``[hidden, heads * dim]``."""
    block_norm: Tensor
    """``[hidden]``."""
    gate_up: Tensor
    """``[2 intermediate, hidden]``."""
    down: Tensor
    """``[hidden, intermediate]``."""


def fuse_head(head: DraftHead) -> tuple[HeadLayerWeights, ...]:
    """The head's layers with fused matrices.

    The head's own matrices become views of the fused ones, so that nothing is held twice; its
    values stay the same.
    """
    return tuple(_fused(layer) for layer in head.layers if isinstance(layer, HeadLayer))


def _fused(layer: HeadLayer) -> HeadLayerWeights:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = _joined((attention.q_proj, attention.k_proj, attention.v_proj))
    queries = attention.q_proj.weight.shape[0] - attention.k_proj.weight.shape[0]
    return HeadLayerWeights(
        input_norm=layer.input_layernorm.weight.detach(),
        qkv=qkv,
        context=qkv[queries:],
        q_norm=attention.q_norm.weight.detach(),
        k_norm=attention.k_norm.weight.detach(),
        output=attention.o_proj.weight.detach(),
        block_norm=layer.post_attention_layernorm.weight.detach(),
        gate_up=_joined((mlp.gate_proj, mlp.up_proj)),
        down=mlp.down_proj.weight.detach(),
    )


def _joined(parts: Sequence[nn.Linear]) -> Tensor:
    weights = [part.weight for part in parts]
    whole = torch.cat([weight.detach() for weight in weights])
    for weight, view in zip(weights, whole.split([len(w) for w in weights]), strict=True):
        weight.data = view
    return whole
