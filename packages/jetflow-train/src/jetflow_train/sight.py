"""Which positions of packed rows see each other, for the target's pass over a training batch.

Every sequence sees its own past. A GPU runs that without a mask, one document after the other;
elsewhere it is a mask.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

_HALF = (torch.bfloat16, torch.float16)
_WIDEST_HEAD = 256
_FEWEST_STARTS = 64


class Documents(NamedTuple):
    """Packed rows, one behind the other, as a list of documents."""

    starts: Tensor
    """int32 ``[n + 1]``: where each document begins, then the number of columns, repeated."""
    longest: int
    """A bound of their lengths."""


Sight = Tensor | Documents
"""What an attention reads: an additive mask ``[R, 1, T, T]``, or documents."""


def document_mask(documents: Tensor) -> Tensor:
    """Bool ``[R, T, T]``: causal within each sequence; padding sees padding before it."""
    columns = torch.arange(documents.shape[1], device=documents.device)
    same = documents[:, :, None] == documents[:, None, :]
    return same & (columns[:, None] >= columns[None, :])


def document_starts(documents: NDArray[np.int64]) -> NDArray[np.int32]:
    """``Documents.starts`` of ``[R, T]`` document numbers, equal ones of a row side by side.

    Its length is the next power of two above the number of documents, plus one, at least
    ``_FEWEST_STARTS`` plus one: compiled code then meets few shapes.
    """
    rows, width = documents.shape
    new = np.ones((rows, width), dtype=np.bool_)
    new[:, 1:] = documents[:, 1:] != documents[:, :-1]
    found = np.flatnonzero(new)
    room = max(_FEWEST_STARTS, 1 << (len(found) - 1).bit_length())
    starts = np.full(room + 1, rows * width, dtype=np.int32)
    starts[: len(found)] = found
    return starts


def packs_documents(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether attention can go over documents without a mask."""
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


def masked_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As ``packed_attention``, under an additive ``bias`` ``[R, 1, T, T]``."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
