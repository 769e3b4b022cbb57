"""Sequences packed one behind the other, and attention that keeps them apart without a mask."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_HALF = (torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256


class Documents(NamedTuple):
    """Packed rows, one behind the other, as a list of documents."""

    starts: Tensor
    """int32 ``[n + 1]``: where each document begins, then the number of columns, repeated."""
    longest: int
    """A bound of their lengths."""


def packs_documents(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether ``packed_attention`` runs there."""
    # What torch's flash attention takes.
    fits = head_dim <= _WIDEST_HEAD and head_dim % 8 == 0
    return device.type == "cuda" and dtype in _HALF and fits


def packed_attention(q: Tensor, k: Tensor, v: Tensor, documents: Documents) -> Tensor:
    """Causal attention within each document.

    Args:
        q: ``[R, heads, T, dim]``; keys and values have as many heads.
        k: likewise.
        v: likewise.
        documents: of the rows.

    Returns:
        ``[R, T, heads * dim]``.
    """
    # Only now: it brings torch's compiler, which takes seconds to import.
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, width, dim = q.shape
    q, k, v = (x.transpose(1, 2).reshape(rows * width, heads, dim) for x in (q, k, v))
    starts, longest = documents
    out = varlen_attn(q, k, v, starts, starts, longest, longest, window_size=(-1, 0))
    assert isinstance(out, Tensor)
    return out.reshape(rows, width, heads * dim)


def separate_attention(q: Tensor, k: Tensor, v: Tensor, starts: Sequence[int]) -> Tensor:
    """As ``packed_attention`` of one row, document by document: on any device, in any type.

    Args:
        q: ``[1, heads, T, dim]``.
        k: ``[1, kv_heads, T, dim]``, whose heads may be fewer.
        v: likewise.
        starts: ``Documents.starts`` on the host.

    Returns:
        ``[1, T, heads * dim]``.
    """
    parts = []
    for start, end in pairwise(starts):
        if start < end:
            own_q, own_k, own_v = (x[:, :, start:end] for x in (q, k, v))
            parts.append(
                F.scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True, enable_gqa=True)
            )
    return torch.cat(parts, dim=2).transpose(1, 2).flatten(2)
