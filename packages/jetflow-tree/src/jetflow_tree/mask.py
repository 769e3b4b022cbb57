"""What the rows of a tree may see, in the layouts that engines ask for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from jetflow_tree.tree import Tree

_WORD = 64


def ancestor_matrix(tree: Tree) -> NDArray[np.bool_]:
    """Which rows each row may attend to: its ancestors and itself.

    Returns:
        [N, N] bool, ``[i, j]`` true when row j is row i or one of its ancestors.
    """
    return unpack_words(ancestor_words(tree), tree.num_nodes)


def ancestor_words(tree: Tree) -> NDArray[np.uint64]:
    """The ancestor matrix packed into 64-bit words.

    Returns:
        [N, ceil(N / 64)] uint64; bit b of word w of row i is entry [i, 64 * w + b].
    """
    count = tree.num_nodes
    seen = [0] * count
    for row, parent in enumerate(tree.parents.tolist()):
        seen[row] = (seen[parent] if row else 0) | (1 << row)
    words = -(-count // _WORD)
    packed = b"".join(bits.to_bytes(8 * words, "little") for bits in seen)
    return np.frombuffer(packed, dtype="<u8").astype(np.uint64).reshape(count, words)


def unpack_words(words: NDArray[np.uint64], num_nodes: int) -> NDArray[np.bool_]:
    """The boolean matrix that packed words stand for.

    Args:
        words: [N, W] uint64, packed as by ``ancestor_words``.
        num_nodes: Columns of the matrix, at most 64 * W.

    Returns:
        [N, num_nodes] bool.

    Raises:
        ValueError: If words is not [N, W] uint64 or holds fewer than num_nodes columns.
    """
    if words.ndim != 2 or words.dtype != np.uint64:
        raise ValueError(f"words must be [N, W] uint64, got {words.shape} {words.dtype}")
    if not 0 <= num_nodes <= _WORD * words.shape[1]:
        raise ValueError(
            f"{words.shape[1]} words hold 0..{_WORD * words.shape[1]} columns, asked {num_nodes}"
        )
    octets = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=num_nodes, bitorder="little").astype(np.bool_)


def position_offsets(tree: Tree) -> NDArray[np.int32]:
    """What to add to the number of committed cache rows to get each row's position.

    Returns:
        [N] int32, the depth of each row: nodes of one depth share a position.
    """
    return tree.depths


def retrieve_indices(tree: Tree) -> NDArray[np.int64]:
    """The root-to-leaf paths, in the layout of EAGLE-style engines.

    Returns:
        [leaves, max depth + 1] int64 row numbers, one leaf a line in row order, the root in the
        first column, -1 after the end of a path.
    """
    inner = np.zeros(tree.num_nodes, dtype=np.bool_)
    inner[tree.parents[1:]] = True
    leaves = np.flatnonzero(~inner).tolist()
    table = np.full((len(leaves), tree.max_depth + 1), -1, dtype=np.int64)
    for line, leaf in enumerate(leaves):
        path = (0, *tree.path(leaf))
        table[line, : len(path)] = path
    return table


def linked_lists(tree: Tree) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The tree as first-child and next-sibling links, in the layout of SGLang's kernels.

    Returns:
        next_token: [N] int64, the first child of each row, -1 for a leaf.
        next_sibling: [N] int64, the next child of the same parent, -1 for the last one.
    """
    count = tree.num_nodes
    next_token, next_sibling = [-1] * count, [-1] * count
    parents = tree.parents.tolist()
    for row in range(count - 1, 0, -1):
        parent = parents[row]
        next_sibling[row], next_token[parent] = next_token[parent], row
    return np.array(next_token, dtype=np.int64), np.array(next_sibling, dtype=np.int64)
