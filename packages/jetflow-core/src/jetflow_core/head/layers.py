"""One layer of the draft head: queries from the block only, keys from the context and the block."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jetflow_core.head.config import HeadConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in at least fp32 as the published heads do."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalised ``x`` ``[..., size]`` in the type of ``x``."""
        return self.weight * unit_rms(x, self.eps)


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """``x`` divided by the RMS of its last axis; same shape and type, computed in at least fp32."""
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotary(
    positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosines and sines for ``positions``.

    Args:
        positions: int64 ``[..., T]``, absolute positions.
        head_dim: size of one head (even).
        theta: base of the wave lengths.
        dtype: type of the result; angles are always formed in fp64, so that two devices and two
            batch shapes agree.

    Returns:
        Two tensors ``[..., 1, T, head_dim]`` that broadcast over the heads.
    """
    steps = torch.arange(0, head_dim, 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None].double() * theta ** (-steps / head_dim)
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(-3)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """``x`` ``[..., heads, T, head_dim]`` turned by its position (halves convention)."""
    cos, sin = rope
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention with shared key heads, never repeating a key.

    Args:
        q: ``[R, heads, N, dim]``.
        k: ``[R, kv_heads, L, dim]``.
        v: like ``k``.
        mask: bool ``[R or 1, 1, N, L]``, True where a row sees a column; None: everything.

    Returns:
        ``[R, N, heads * dim]`` in the type of ``q``.
    """
    requests, heads, rows, dim = q.shape
    kv_heads = k.shape[1]
    groups = heads // kv_heads
    packed = q.reshape(requests, kv_heads, groups * rows, dim)
    if mask is not None:
        mask = mask.repeat(1, 1, groups, 1)
    out = F.scaled_dot_product_attention(packed, k, v, attn_mask=mask)
    return (
        out.reshape(requests, heads, rows, dim).transpose(1, 2).reshape(requests, rows, heads * dim)
    )


class Attention(nn.Module):
    """Attention of a block over the context's keys and its own."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.dim = config.head_dim
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def keys_values(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys (normed, rotated), values ``[R, kv_heads, T, dim]`` of ``x`` ``[R, T, hidden]``."""
        return rotate(self.k_norm(self._split(self.k_proj(x))), rope), self._split(self.v_proj(x))

    def queries(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        """Queries (normed, rotated) of ``x`` ``[R, S, hidden]``: ``[R, heads, S, dim]``."""
        return rotate(self.q_norm(self._split(self.q_proj(x))), rope)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.dim)).transpose(-3, -2)


class MLP(nn.Module):
    """Gated feed-forward part."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., hidden]`` to ``[..., hidden]``."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class HeadLayer(nn.Module):
    """One decoder layer whose context keys come from the fused target features."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def context_keys_values(
        self, fused: Tensor, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of context rows ``[R, T, hidden]``; they skip the input norm."""
        return self.self_attn.keys_values(fused, rope)

    def block_keys_values(
        self, x: Tensor, rope: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the block's own rows ``[R, S, hidden]``."""
        normed = self.input_layernorm(x)
        keys, values = self.self_attn.keys_values(normed, rope)
        return self.self_attn.queries(normed, rope), keys, values

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output ``[R, S, hidden]`` from its input and the attention's result."""
        x = x + self.self_attn.o_proj(attended)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out
