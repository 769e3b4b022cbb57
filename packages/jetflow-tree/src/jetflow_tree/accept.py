"""Which drafted nodes a round keeps: the walk from the root along the target's own picks.

A tree is fixed before the target speaks, so no rejection rule is needed: let the target pick one
token at a node, exactly as it would without speculation, and step to the child that carries it,
if there is one. Every emitted token is then a plain pick of the target at its own path, which
makes greedy output identical and sampled output exactly distributed, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jetflow_tree.tree import Tree


@dataclass(frozen=True, slots=True)
class Accepted:
    """What one round keeps of its tree, and the target's token that follows."""

    nodes: tuple[int, ...]
    """Rows of the accepted nodes from depth 1 on, root excluded."""
    tokens: tuple[int, ...]
    """Their tokens."""
    correction: int
    """The target's pick after the last accepted node (or the root); no drafted child has it."""

    @property
    def emitted(self) -> tuple[int, ...]:
        """All tokens the round commits: the accepted ones and the correction."""
        return (*self.tokens, self.correction)


def lazy_walk(tree: Tree, pick: Callable[[int], int]) -> Accepted:
    """The accepted path when picks are made one row at a time, only along the walk.

    Args:
        tree: The verified tree.
        pick: Maps a row to the token the target chooses after it, by argmax or by sampling with
            that row's own history. Called once for the root and once for each accepted node.

    Returns:
        The accepted rows and the correction token.
    """
    tokens = tree.tokens.tolist()
    current, wanted = 0, pick(0)
    nodes: list[int] = []
    # Children come after their parent, so one pass over the rows finds the whole path.
    for row, parent in enumerate(tree.parents.tolist()):
        if parent == current and tokens[row] == wanted:
            nodes.append(row)
            current, wanted = row, pick(row)
    return Accepted(tuple(nodes), tuple(tokens[row] for row in nodes), int(wanted))


def walk(tree: Tree, picks: ArrayLike) -> Accepted:
    """The accepted path when the target's pick is known at every row.

    Args:
        tree: The verified tree.
        picks: [N] integers, the target's argmax (greedy) or one independent sample at each row.

    Returns:
        The accepted rows and the correction token.

    Raises:
        ValueError: If picks is not one integer a row.

    Examples:
        >>> walk(Tree.from_parents([7, 1, 2, 3], [-1, 0, 0, 1]), [1, 3, 5, 8])
        Accepted(nodes=(1, 3), tokens=(1, 3), correction=8)
    """
    array = np.asarray(picks)
    if array.shape != (tree.num_nodes,) or array.dtype.kind not in "iu":
        raise ValueError(
            f"picks must be {tree.num_nodes} integers, got {array.shape} {array.dtype}"
        )
    chosen: list[int] = array.tolist()
    return lazy_walk(tree, chosen.__getitem__)


def sample_walk(tree: Tree, probs: ArrayLike, rng: np.random.Generator) -> Accepted:
    """The accepted path when the target samples, exactly with its distribution.

    Args:
        tree: The verified tree.
        probs: [N, V] the target's probabilities after each row, after temperature, top-p and
            whatever else the request asks for on that row's own path.
        rng: Source of randomness; one uniform number is drawn for each visited row.

    Returns:
        The accepted rows and the correction token.

    Raises:
        ValueError: If probs is not [N, V], or a visited row is no distribution.
    """
    table = np.asarray(probs, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != tree.num_nodes:
        raise ValueError(f"probs must be [{tree.num_nodes}, V], got {table.shape}")
    return lazy_walk(tree, lambda row: _sample(table[row], row, rng))


def _sample(probs: NDArray[np.float64], row: int, rng: np.random.Generator) -> int:
    total = float(probs.sum())
    if not (probs >= 0.0).all() or not abs(total - 1.0) <= 1e-3:
        raise ValueError(f"probs of row {row} are no distribution (they sum to {total})")
    steps = np.cumsum(probs)
    # Scaling by the last step, not by 1, keeps the draw inside the table under rounding; the
    # search on the right side never lands on a token of probability 0.
    return int(np.searchsorted(steps, rng.random() * steps[-1], side="right"))
