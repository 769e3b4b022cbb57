"""The tree's mask as a function that flash-attn compiles into its kernel, over ancestor words."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.attention.flash.library import load

_BITS = 32


def half_words(ancestors: Tensor) -> Tensor:
    """Ancestor words as the mask reads them.

    Args:
        ancestors: [T, W] int64.

    Returns:
        [T, 2 * W] int32: bit ``c % 32`` of half word ``c // 32`` stands for tree row c, since the
        machines that have such cards store the low half of a number first. A view where the words
        are contiguous.
    """
    return ancestors.contiguous().view(torch.int32)


@cache
def tree_mask() -> Any:
    """Which keys a row sees: its whole prefix, and the tree rows of its words.

    flash-attn calls it for every score with one number each in vectors: request, head, row of the
    request and position of the key; ``lengths`` holds where the request's rows begin and how many
    rows and positions it has; ``tensors`` holds ``half_words``. Rows and positions past the end
    are asked about too and ignored, so indices are only kept inside the tensor.
    """
    library = load()
    cute, cutlass, to_vector = library.cute, library.cutlass, library.to_vector

    @cute.jit
    def sees(request: Any, head: Any, row: Any, column: Any, lengths: Any, tensors: Any) -> Any:
        words = tensors[0]
        node = column[0] - (lengths.seqlen_k - lengths.seqlen_q)
        place = cutlass.max(node, 0)
        at_row = cutlass.min(row[0] + lengths.offset_q, words.shape[0] - 1)
        at_word = cutlass.min(place // _BITS, words.shape[1] - 1)
        bit = (words[at_row, at_word] >> (place % _BITS)) & 1
        return to_vector((node < 0) | (bit != 0), cutlass.Boolean)

    return sees
