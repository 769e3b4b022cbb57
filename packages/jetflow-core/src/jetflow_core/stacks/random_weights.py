"""Random weights of a shape, made where they are used: speed does not ask what they are."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from jetflow_core.stacks.shape import ExpertShape, StackShape
from jetflow_core.stacks.weights import DenseWeights, ExpertWeights, LayerWeights, StackWeights


class Make(Protocol):
    """Makes the tensors of a stack, one at a time."""

    def matrix(self, *sizes: int) -> Tensor:
        """A weight or bias of these sizes; the last one is that of its inputs."""
        ...

    def norm(self, size: int) -> Tensor:
        """The weight of a norm."""
        ...


class _Random:
    """`Make` of weights that keep the size of what passes through them."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self._device, self._dtype = device, dtype
        self._generator = torch.Generator(device).manual_seed(seed)

    def matrix(self, *sizes: int) -> Tensor:
        # In its own type at once: a wider copy of all of them would not fit.
        made = torch.empty(sizes, dtype=self._dtype, device=self._device)
        return made.normal_(0.0, sizes[-1] ** -0.5, generator=self._generator)

    def norm(self, size: int) -> Tensor:
        return torch.ones(size, dtype=self._dtype, device=self._device)


def random_weights(
    shape: StackShape, *, device: torch.device | str, dtype: torch.dtype, seed: int = 0
) -> StackWeights:
    """Random weights of which no value overflows.

    Args:
        shape: Whose.
        device: Where they are made; another device draws other numbers from the same seed.
        dtype: Their floating type.
        seed: Of all of them.
    """
    return made_weights(shape, _Random(torch.device(device), dtype, seed))


def made_weights(shape: StackShape, make: Make) -> StackWeights:
    """Weights of a shape, each as `make` makes it."""
    embed_tokens = make.matrix(shape.vocab_size, shape.hidden_size)
    return StackWeights(
        embed_tokens=embed_tokens,
        layers=tuple(_layer(shape, layer, make) for layer in range(shape.num_layers)),
        norm=make.norm(shape.hidden_size),
        lm_head=embed_tokens if shape.tied else make.matrix(shape.vocab_size, shape.hidden_size),
    )


def _layer(shape: StackShape, layer: int, make: Make) -> LayerWeights:
    width = shape.q_width + 2 * shape.kv_width
    experts = shape.experts_of(layer)
    return LayerWeights(
        input_norm=make.norm(shape.hidden_size),
        qkv=make.matrix(width, shape.hidden_size),
        qkv_bias=make.matrix(width) if shape.qkv_bias else None,
        q_norm=make.norm(shape.head_dim) if shape.head_norms else None,
        k_norm=make.norm(shape.head_dim) if shape.head_norms else None,
        output=make.matrix(shape.hidden_size, shape.q_width),
        output_bias=make.matrix(shape.hidden_size) if shape.output_bias else None,
        mlp_norm=make.norm(shape.hidden_size),
        mlp=_dense(shape, make) if experts is None else _experts(shape, experts, make),
    )


def _dense(shape: StackShape, make: Make) -> DenseWeights:
    return DenseWeights(
        gate_up=make.matrix(2 * shape.intermediate_size, shape.hidden_size),
        down=make.matrix(shape.hidden_size, shape.intermediate_size),
    )


def _experts(shape: StackShape, experts: ExpertShape, make: Make) -> ExpertWeights:
    inner = experts.intermediate_size
    return ExpertWeights(
        router=make.matrix(experts.count, shape.hidden_size),
        gate_up=make.matrix(experts.count, 2 * inner, shape.hidden_size),
        down=make.matrix(experts.count, shape.hidden_size, inner),
        chosen=experts.chosen,
        normalised=experts.normalised,
    )
