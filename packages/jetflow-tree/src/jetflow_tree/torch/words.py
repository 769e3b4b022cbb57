"""Ancestor masks as 64-bit words, dense matrices, and positions.

A word is an int64 that carries the bit pattern of a uint64 (torch has few uint64 operations):
bit `i % 64` of word `i // 64` of a row says whether the row sees row i. View the array as uint64
in numpy to compare it with `jetflow_tree.ancestor_words`.
"""

import torch
from torch import Tensor

from jetflow_tree.torch.trees import DeviceTrees, check_int64

WORD_BITS = 64


def num_words(rows: int) -> int:
    """Words that hold one bit for each of `rows` rows."""
    return -(-rows // WORD_BITS)


def pack_words(matrix: Tensor) -> Tensor:
    """Pack the last axis of a bool tensor: [..., N] bool to [..., ceil(N / 64)] int64.

    Bits past N are zero. Raises ValueError if the tensor is not bool.
    """
    if matrix.dtype != torch.bool:
        raise ValueError(f"matrix must be bool, got {matrix.dtype}")
    words = num_words(matrix.shape[-1])
    padded = torch.nn.functional.pad(matrix, (0, words * WORD_BITS - matrix.shape[-1]))
    bits = padded.reshape(*matrix.shape[:-1], words, WORD_BITS).long()
    # The bits of a word are distinct powers of two, so that the sum is their union; the sign bit
    # arrives by wrap-around.
    return (bits << torch.arange(WORD_BITS, device=matrix.device)).sum(-1)


def unpack_words(words: Tensor, num_columns: int) -> Tensor:
    """Unpack words: [..., W] int64 to [..., num_columns] bool.

    Raises ValueError if the words are not int64 or hold fewer than `num_columns` bits.
    """
    if words.dtype != torch.int64:
        raise ValueError(f"words must be int64, got {words.dtype}")
    if not 0 <= num_columns <= words.shape[-1] * WORD_BITS:
        raise ValueError(
            f"num_columns must be in 0..{words.shape[-1] * WORD_BITS}, got {num_columns}"
        )
    columns = torch.arange(num_columns, device=words.device)
    return (words[..., columns // WORD_BITS] >> (columns % WORD_BITS) & 1).bool()


def ancestor_words(trees: DeviceTrees) -> Tensor:
    """For every row the rows it sees, itself included: [R, B, ceil(B / 64)] int64.

    A node sees its ancestors and the root; a padding row sees itself alone.
    """
    rows = torch.arange(trees.budget, device=trees.tokens.device)
    words = pack_words(rows[:, None] == rows).expand(trees.num_requests, -1, -1)
    jump = torch.where(trees.parents < 0, rows, trees.parents)
    # Pointer doubling: after s steps a row knows its 2^s - 1 nearest ancestors, and points past.
    for _ in range(trees.max_depth.bit_length()):
        words = words | words.gather(1, jump[..., None].expand_as(words))
        jump = jump.gather(1, jump)
    return words


def ancestor_matrix(trees: DeviceTrees) -> Tensor:
    """The same as a dense mask: [R, B, B] bool, entry [r, i, j] says that row i sees row j."""
    return unpack_words(ancestor_words(trees), trees.budget)


def positions(trees: DeviceTrees, root_positions: Tensor) -> Tensor:
    """Position of every row in its sequence: position of the root plus depth, [R, B] int64.

    Args:
        trees: The trees.
        root_positions: [R] int64, for each request the number of tokens before its root.

    Raises:
        ValueError: `root_positions` has another shape or type.
    """
    check_int64("root_positions", root_positions, (trees.num_requests,))
    return root_positions[:, None] + trees.depths
