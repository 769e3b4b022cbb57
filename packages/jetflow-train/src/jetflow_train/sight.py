"""Which positions of packed rows see each other, for the target's pass over a training batch.

Every sequence sees its own past. A GPU runs that without a mask, one document after the other;
elsewhere it is a mask.
"""

from __future__ import annotations

import numpy as np
import torch
from jetflow_core.documents import Documents, packed_attention, packs_documents
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

__all__ = [
    "Documents",
    "Sight",
    "document_mask",
    "document_starts",
    "masked_attention",
    "packed_attention",
    "packs_documents",
]

_FEWEST_STARTS = 64


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


def masked_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """As ``packed_attention``, under an additive ``bias`` ``[R, 1, T, T]``."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
