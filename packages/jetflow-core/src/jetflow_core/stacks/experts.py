"""Mixtures of experts over packed rows: which experts a row takes, and what they make of it.

`mix_by_loop` is the reference. The others have fixed shapes, so that a CUDA graph can hold them:
nothing about them depends on which experts were chosen, only on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from jetflow_core.stacks.weights import ExpertWeights

SiluMul = Callable[[Tensor], Tensor]
"""`[N, I]` of `[N, 2 I]`, as `LayerOps.silu_mul`."""

# From here on torch has a kernel for groups whose sizes only the device knows.
_GROUPED_FROM = (9, 0)
_GROUPED_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """The experts of each row.

    Attributes:
        experts: `[T, chosen]` int64, distinct in a row.
        shares: `[T, chosen]` in the rows' type: the factor of each expert's output.
    """

    experts: Tensor
    shares: Tensor


class Mix(Protocol):
    """One way to compute the experts' part of a layer; all give the same up to rounding."""

    def __call__(
        self, x: Tensor, routes: Routes, weights: ExpertWeights, silu_mul: SiluMul
    ) -> Tensor:
        """`[T, hidden]` of normed rows `x` `[T, hidden]`."""
        ...


def route(logits: Tensor, weights: ExpertWeights) -> Routes:
    """The most probable experts of each row, from the router's logits `[T, E]`.

    The probabilities are a softmax over all experts in float32, as transformers computes them.
    """
    shares, experts = logits.softmax(-1, dtype=torch.float32).topk(weights.chosen, dim=-1)
    if weights.normalised:
        shares = shares / shares.sum(-1, keepdim=True)
    return Routes(experts, shares.to(logits.dtype))


def mix_by_loop(x: Tensor, routes: Routes, weights: ExpertWeights, silu_mul: SiluMul) -> Tensor:
    """`Mix` by one expert after the other, each over the rows that chose it."""
    out = torch.zeros_like(x)
    for expert in range(weights.router.shape[0]):
        rows, places = (routes.experts == expert).nonzero(as_tuple=True)
        inner = silu_mul(F.linear(x[rows], weights.gate_up[expert]))
        made = F.linear(inner, weights.down[expert])
        out[rows] += made * routes.shares[rows, places, None]
    return out


def mix_gathered(x: Tensor, routes: Routes, weights: ExpertWeights, silu_mul: SiluMul) -> Tensor:
    """`Mix` with a copy of every chosen expert's weights: for a row or two."""
    chosen = routes.experts.flatten()
    rows = x[:, None].expand(-1, weights.chosen, -1).flatten(0, 1)
    inner = silu_mul(torch.bmm(weights.gate_up[chosen], rows[:, :, None])[:, :, 0])
    made = torch.bmm(weights.down[chosen], inner[:, :, None])[:, :, 0]
    return _summed(made, routes)


def mix_dense(x: Tensor, routes: Routes, weights: ExpertWeights, silu_mul: SiluMul) -> Tensor:
    """`Mix` with every expert over every row: the weights are read once, whoever is chosen.

    With tens of rows nearly every expert is chosen by one, so no more is read than has to be, and
    the products that nobody asked for hide behind the reading.
    """
    count, inner_size = weights.router.shape[0], weights.down.shape[2]
    both = F.linear(x, weights.gate_up.flatten(0, 1))
    inner = silu_mul(both.view(-1, 2 * inner_size)).view(-1, count, inner_size)
    made = torch.bmm(inner.transpose(0, 1), weights.down.transpose(1, 2))
    # Only the chosen ones' outputs are read: another expert's may be infinite, and 0 times that
    # would be NaN.
    places = torch.arange(x.shape[0], device=x.device)[:, None]
    return _summed(made[routes.experts, places].flatten(0, 1), routes)


def mix_grouped(x: Tensor, routes: Routes, weights: ExpertWeights, silu_mul: SiluMul) -> Tensor:
    """`Mix` with the rows sorted by expert, in one product of groups for each matrix.

    The sizes of the groups stay on the device. An expert that nobody chose costs nothing.
    """
    count = weights.router.shape[0]
    by_expert, order = routes.experts.flatten().sort(stable=True)
    every = torch.arange(count, device=x.device)
    ends = torch.searchsorted(by_expert, every, right=True, out_int32=True)
    rows = x[order // weights.chosen]
    inner = silu_mul(F.grouped_mm(rows, weights.gate_up.transpose(1, 2), offs=ends))
    made = F.grouped_mm(inner, weights.down.transpose(1, 2), offs=ends)
    unsorted = torch.empty_like(made).index_copy_(0, order, made)
    return _summed(unsorted, routes)


def mix_for(rows: int, weights: ExpertWeights) -> Mix:
    """The `Mix` of fixed shape that reads least for a number of rows, by sizes alone."""
    if _has_groups(weights):
        return mix_grouped
    # Gathering reads the chosen experts, writes them and reads them again.
    return mix_gathered if 3 * rows * weights.chosen < weights.router.shape[0] else mix_dense


def _has_groups(weights: ExpertWeights) -> bool:
    device = weights.down.device
    if device.type != "cuda" or weights.down.dtype != torch.bfloat16:
        return False
    aligned = not any(size % _GROUPED_ALIGNMENT for size in weights.down.shape[1:])
    return aligned and torch.cuda.get_device_capability(device) >= _GROUPED_FROM


def _summed(made: Tensor, routes: Routes) -> Tensor:
    """`[T, hidden]` of the outputs `[T * chosen, hidden]` of each row's experts."""
    rows, chosen = routes.shares.shape
    return (made.view(rows, chosen, -1) * routes.shares[:, :, None]).sum(1)
