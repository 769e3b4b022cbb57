"""Which of the two ways a tree is built, and the sizes that their kernels are compiled for."""

from __future__ import annotations

from jetflow_kernels.round.checks import power_of_two
from jetflow_kernels.round.trees import num_words

MOST_SORTED = 32
"""Candidates whose ranks fit into what a waiting node carries, so that lines are sorted."""
_MOST_KNOWN = 8192
"""Known nodes that a bound is taken of: all are held at once."""


def tile_sizes(capacity: int, depth: int, width: int) -> dict[str, int]:
    """Sizes that the builders are compiled for.

    Args:
        capacity: B.
        depth: D.
        width: K.
    """
    bits = max(1, (width - 1).bit_length())
    return {
        # A warp reduces 32 lanes in one instruction, fewer in several.
        "SLOTS": power_of_two(capacity, least=32),
        "WIDTH": power_of_two(width, least=32),
        "DEPTHS": power_of_two(depth),
        "BITS": bits,
        "PATH_WORDS": max(1, -(-depth // (63 // bits))),
        "COLUMNS": power_of_two(num_words(capacity)),
    }


def is_swept(capacity: int, depth: int, width: int) -> bool:
    """Whether trees are built depth by depth instead of node by node.

    That takes a few steps a depth, however many rows there are, against one step a row: from 33
    rows on. Its bound looks at all pairs of candidates, so it is for at most 32 of those.

    Args:
        capacity: B.
        depth: D.
        width: K.
    """
    return capacity > 32 and depth >= 2 and width <= MOST_SORTED


def sweep_sizes(capacity: int, depth: int, width: int) -> dict[str, int]:
    """Sizes that the sweep is compiled for, as ``tile_sizes``.

    For few slots and many depths ptxas would rather spill than use more registers.
    """
    slots = power_of_two(capacity, least=256 if depth > 16 else 32)
    return {
        **tile_sizes(capacity, depth, width),
        "SLOTS": slots,
        "WIDTH": power_of_two(width, least=4),
        "ROOM": max(1024, 8 * slots),
        "BLOCK": 512 if slots <= 128 else 1024,
    }


def bound_sizes(depth: int, parents: int, width: int) -> dict[str, int]:
    """Sizes that the check before a sweep is compiled for: at most 8192 known nodes at a time."""
    lanes = power_of_two(width, least=4)
    lengths = min(power_of_two(depth - 1), _MOST_KNOWN // lanes**2)
    return {
        "WIDTH": lanes,
        "PARENTS": power_of_two(parents, least=4) if parents > 1 else 1,
        "LENGTHS": max(2, lengths),
    }
