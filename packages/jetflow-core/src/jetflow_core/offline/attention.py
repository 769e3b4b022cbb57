"""Attention of one new token a row over the row's own keys and values."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


class RowAttention(Protocol):
    """One query token for each of many rows of different lengths."""

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, longest: int
    ) -> Tensor:
        """Attend.

        Args:
            queries: ``[R, heads, dim]``.
            keys: ``[R, capacity, kv_heads, dim]``, one layer's.
            values: likewise.
            lengths: int32 ``[R]``: how many columns a row sees, at least 1.
            longest: a bound of ``lengths``, known on the host.

        Returns:
            ``[R, heads, dim]``.
        """


class MaskedAttention:
    """``RowAttention`` by torch's own attention under a mask: every row reads ``longest`` columns.

    The queries that share a key head stand side by side, so keys are read once and not repeated.
    """

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, longest: int
    ) -> Tensor:
        """Attend; see ``RowAttention``."""
        rows, heads, dim = queries.shape
        kv_heads = keys.shape[2]
        seen = torch.arange(longest, device=keys.device) < lengths[:, None]
        bias = torch.zeros(seen.shape, dtype=queries.dtype, device=keys.device)
        bias = bias.masked_fill(~seen, float("-inf"))[:, None, None]
        packed = queries.view(rows, kv_heads, heads // kv_heads, dim)
        with _kernels(keys.device):
            out = F.scaled_dot_product_attention(
                packed,
                keys[:, :longest].transpose(1, 2),
                values[:, :longest].transpose(1, 2),
                bias.expand(-1, kv_heads, heads // kv_heads, -1),
            )
        return out.reshape(rows, heads, dim)


def _kernels(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU those that take an additive mask without choosing a plan for each new shape."""
    if device.type != "cuda":
        return nullcontext()
    context: AbstractContextManager[None] = sdpa_kernel(
        [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    )
    return context


def reference_attention(queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor) -> Tensor:
    """``RowAttention`` row by row and head by head, in the type of its inputs."""
    heads, kv_heads = queries.shape[1], keys.shape[2]
    out = torch.empty_like(queries)
    for row, length in enumerate(lengths.tolist()):
        for head in range(heads):
            shared = head * kv_heads // heads
            scores = keys[row, :length, shared] @ queries[row, head] / queries.shape[2] ** 0.5
            out[row, head] = scores.softmax(0) @ values[row, :length, shared]
    return out
