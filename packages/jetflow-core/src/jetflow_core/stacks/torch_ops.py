"""`LayerOps` in plain torch, one operation after the other: for the CPU, and to check others by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class TorchOps:
    """The reference of `LayerOps`: rounded where transformers rounds, on any device."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """As `LayerOps` says."""
        return F.linear(x, weight, bias)

    def gate_up_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        """As `LayerOps` says."""
        return self.silu_mul(self.linear(x, weight))

    def prepare(
        self, rows: Sequence[int], weights: Sequence[Tensor], gated: Sequence[Tensor] = ()
    ) -> None:
        """Nothing: there is one way to run a product."""

    def products(self) -> Sequence[Mapping[str, Any]]:
        """Nothing was chosen."""
        return ()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """As `LayerOps` says."""
        wide = x if x.dtype == torch.float64 else x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
        return weight * scaled.to(x.dtype)

    def add_rms_norm(
        self, x: Tensor, change: Tensor, weight: Tensor, eps: float, total: Tensor
    ) -> Tensor:
        """As `LayerOps` says."""
        torch.add(x, change, out=total)
        return self.rms_norm(total, weight, eps)

    def norm_rope_kv_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        *,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
    ) -> Tensor:
        """As `LayerOps` says."""
        kv_heads, dim = k_pool.shape[2:]
        heads = qkv.unflatten(1, (-1, dim))
        q, k, v = heads.tensor_split((heads.shape[1] - 2 * kv_heads, heads.shape[1] - kv_heads), 1)
        if q_weight is not None and k_weight is not None:
            q, k = self.rms_norm(q, q_weight, eps), self.rms_norm(k, k_weight, eps)
        lines = tuple(_lines(table, positions).to(qkv.dtype) for table in (cos, sin))
        write_rows(k_pool, slots, _turned(k, *lines))
        write_rows(v_pool, slots, v)
        return _turned(q, *lines)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """As `LayerOps` says."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up


def write_rows(pool: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Writes rows to their places in a pool, in a shape that does not depend on the places.

    Args:
        pool: `[pages, page, ...]`, changed in place.
        slots: `[T]` int64: page times page size plus the row in the page; rows with a slot below
            0 or past the last page are not written. Slots that are written differ.
        rows: `[T, ...]`.
    """
    page = pool.shape[1]
    kept = (slots >= 0) & (slots < pool.shape[0] * page)
    # A row that goes nowhere writes once more what another one writes, or what is there anyway.
    other = kept.int().argmax()
    source = torch.where(kept, torch.arange(len(slots), device=slots.device), other)
    place = slots[source].clamp(0, pool.shape[0] * page - 1)
    places = (place // page, place % page)
    pool[places] = torch.where(kept.any(), rows[source], pool[places])


def _lines(table: Tensor, positions: Tensor) -> Tensor:
    """The table's line of each position, one for all heads; NaN where it has none."""
    last = table.shape[0] - 1
    outside = (positions < 0) | (positions > last)
    lines = table[positions.long().clamp(0, last)]
    return lines.masked_fill(outside[:, None], torch.nan)[:, None]


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
