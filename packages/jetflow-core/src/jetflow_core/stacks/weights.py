"""The weights of a stack, fused: what one product can do is one matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DenseWeights:
    """An ordinary MLP.

    Attributes:
        gate_up: `[2 I, hidden]`, the gate's rows first.
        down: `[hidden, I]`.
    """

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ExpertWeights:
    """The experts of a layer and what chooses among them.

    Attributes:
        router: `[E, hidden]`.
        gate_up: `[E, 2 I, hidden]`, the gate's rows first.
        down: `[E, hidden, I]`.
        chosen: Experts of a row.
        normalised: Whether the chosen probabilities are divided by their sum.
    """

    router: Tensor
    gate_up: Tensor
    down: Tensor
    chosen: int
    normalised: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer.

    Attributes:
        input_norm: `[hidden]`, before the attention.
        qkv: `[(Hq + 2 Hkv) * D, hidden]`: all query heads, all key heads, all value heads.
        qkv_bias: `[(Hq + 2 Hkv) * D]` or None.
        q_norm: `[D]` or None; there if and only if `k_norm` is.
        k_norm: `[D]` or None.
        output: `[hidden, Hq * D]`, behind the attention.
        output_bias: `[hidden]` or None.
        mlp_norm: `[hidden]`, before the MLP.
        mlp: What follows the attention.
    """

    input_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    mlp: DenseWeights | ExpertWeights


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StackWeights:
    """All weights of a stack, in one type and on one device.

    Attributes:
        embed_tokens: `[vocab, hidden]`.
        layers: In their order.
        norm: `[hidden]`, behind the last layer.
        lm_head: `[vocab, hidden]`; the same tensor as `embed_tokens` if they are tied.
    """

    embed_tokens: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    lm_head: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Type of every weight."""
        return self.lm_head.dtype

    @property
    def device(self) -> torch.device:
        """Where every weight is."""
        return self.lm_head.device


def products_of(weights: StackWeights) -> tuple[list[Tensor], list[Tensor]]:
    """The matrices of a pass, experts left out: of plain products, and of gated ones."""
    plain, gated = [weights.lm_head], []
    for layer in weights.layers:
        plain += [layer.qkv, layer.output]
        if isinstance(layer.mlp, DenseWeights):
            plain.append(layer.mlp.down)
            gated.append(layer.mlp.gate_up)
        else:
            plain.append(layer.mlp.router)
    return plain, gated
