"""The rows of a batch that attend as trees do, as one call on the device takes them.

vLLM sorts a batch: requests with drafts come first, then those with few rows, then long pieces of
prompts. So all that tree attention does is the beginning of the batch. A request without a tree
is a chain there, one row or many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

MOST_ROWS = 256
"""Rows of one request that tree attention takes."""
WORD_BITS = 64


@dataclass(frozen=True, slots=True, eq=False)
class LeadingRows:
    """Arguments of tree attention for the first requests of a batch, all on its device."""

    rows: int
    """Rows of the batch that they have, T; padding of a graph included."""
    cu_nodes: Tensor
    """int32 ``[R + 1]``, the first row of each request, and one past the last's."""
    prefix_len: Tensor
    """int32 ``[R]``, cached rows before them."""
    ancestors: Tensor
    """int64 ``[T, W]``, the words of ``jetflow_tree.ancestor_words``."""

    @property
    def requests(self) -> int:
        """How many requests they are, R."""
        return self.prefix_len.shape[0]


def count_leading(scheduled: Sequence[int], most: int = MOST_ROWS) -> int:
    """How many requests at the beginning of a batch have at most ``most`` rows each."""
    for count, rows in enumerate(scheduled):
        if rows > most:
            return count
    return len(scheduled)


def words_for(most: int) -> int:
    """Ancestor words of a row whose request has up to ``most`` rows."""
    return -(-most // WORD_BITS)


def chain_words(rows: int) -> NDArray[np.int64]:
    """int64 ``[rows, ceil(rows / 64)]``: every row sees itself and all rows before it."""
    seen = [(1 << (row + 1)) - 1 for row in range(rows)]
    words = words_for(rows)
    packed = b"".join(bits.to_bytes(8 * words, "little") for bits in seen)
    return np.frombuffer(packed, dtype="<i8").astype(np.int64).reshape(rows, words)
