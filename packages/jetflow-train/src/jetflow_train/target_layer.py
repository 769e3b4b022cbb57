"""One decoder layer of a dense Llama-type target, as plain functions of its weights.

Answering prompts over a static KV cache and capturing features of packed sequences both use these,
so both see the same arithmetic.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from jetflow_train.sight import Documents, Sight, masked_attention, packed_attention


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


def full_attention(q: Tensor, k: Tensor, v: Tensor, sight: Sight) -> Tensor:
    """Attention of all positions, ``[R, T, width]``."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if isinstance(sight, Documents):
        return packed_attention(q, k, v, sight)
    return masked_attention(q, k, v, sight)


def run_layer(
    x: Tensor, w: LayerWeights, cos: Tensor, sin: Tensor, sight: Sight, shape: TargetShape
) -> Tensor:
    """One whole layer over ``[R, T, hidden]``."""
    q, k, v = project(x, w, (cos, sin), shape)
    return finish(x, full_attention(q, k, v, sight), w, shape)


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
