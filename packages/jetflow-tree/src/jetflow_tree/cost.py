"""How large a tree pays: a measured cost curve and the size that gives most tokens per second."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jetflow_tree.tree import Tree

Cost = Callable[[int], float]
"""Seconds of one verify pass over so many rows; a CostCurve or any function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCurve:
    """Measured seconds of a verify pass by its number of rows.

    Linear between two measured points. Below the first one it is that point's time. Above the
    last one it goes on with the last slope, or flat if noise made that slope negative.

    Examples:
        >>> curve = CostCurve(rows=(1, 64, 128), seconds=(0.010, 0.012, 0.020))
        >>> round(curve(96), 6), round(curve(192), 6)
        (0.016, 0.028)
    """

    rows: tuple[int, ...]
    """Sizes of the measured passes, increasing, the first at least 1."""
    seconds: tuple[float, ...]
    """Positive times of these passes, in seconds."""

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.seconds):
            raise ValueError(
                f"a cost curve needs as many rows as seconds and at least 1 point, got "
                f"{len(self.rows)} and {len(self.seconds)}"
            )
        if not all(type(size) is int or isinstance(size, np.integer) for size in self.rows):
            raise ValueError(f"rows must be whole numbers, got {self.rows}")
        steps = zip(self.rows, self.rows[1:], strict=False)
        if self.rows[0] < 1 or any(after <= before for before, after in steps):
            raise ValueError(f"rows must increase from at least 1, got {self.rows}")
        if not all(isfinite(value) and value > 0.0 for value in self.seconds):
            raise ValueError(f"seconds must be positive finite numbers, got {self.seconds}")

    def __call__(self, rows: int) -> float:
        """Seconds of a pass over ``rows`` rows.

        Raises:
            ValueError: If rows is below 1.
        """
        if rows < 1:
            raise ValueError(f"a verify pass has at least 1 row, got {rows}")
        after = bisect_right(self.rows, rows)
        if after == 0 or len(self.rows) == 1:
            return self.seconds[0]
        left = min(after, len(self.rows) - 1) - 1
        slope = (self.seconds[left + 1] - self.seconds[left]) / (
            self.rows[left + 1] - self.rows[left]
        )
        if after == len(self.rows):
            return self.seconds[-1] + max(slope, 0.0) * (rows - self.rows[-1])
        return self.seconds[left] + slope * (rows - self.rows[left])


def best_size(scores: ArrayLike, cost: Cost, fixed: float) -> int:
    """The number of rows, taken from the front, that gives most expected tokens per second.

    It maximises (1 + sum of exp(score) over the drafted rows) / (fixed + cost(rows)) over every
    size. Walking up only until the ratio first falls is not enough: real verify times are
    staircases (a kernel tile, a graph bucket), so the ratio falls right after each step and may
    rise above its old peak before the next one.

    Args:
        scores: [N] cumulative log-probabilities of the rows, the root's 0.0 first, in the order
            in which rows would be added (best first).
        cost: Seconds of a verify pass by rows.
        fixed: Seconds a round costs besides (drafting, acceptance, commit), at least 0.

    Returns:
        The best size in 1..N; the smallest of equally good ones.

    Raises:
        ValueError: If scores is empty, fixed is negative, or a round would take no time.
    """
    return peak_size(np.asarray(scores, dtype=np.float64), 1, cost, fixed)


def stop_early(tree: Tree, cost: Cost, fixed: float) -> Tree:
    """The front part of a tree that gives most expected tokens per second.

    Rows of a best-first tree come best first, so each front part is the best tree of its size and
    the result is the best of all trees. Other builders' trees are cut in their own row order.

    The global maximum over all sizes is taken, not the first local one: verify times are
    staircases, and the gain of the nodes that fill a step can outweigh the dip at its start.

    Args:
        tree: The tree at the largest size that may be used.
        cost: Seconds of a verify pass by rows.
        fixed: Seconds a round costs besides, at least 0.

    Returns:
        ``tree.trim(n)`` for the best n.

    Raises:
        ValueError: If fixed is negative, or a round would take no time.
    """
    return tree.trim(best_size(tree.scores, cost, fixed))


def peak_size(scores: NDArray[np.float64], roots: int, cost: Cost, fixed: float) -> int:
    """The size in roots..N with the largest expected tokens per second; roots come first."""
    if scores.ndim != 1 or len(scores) < roots:
        raise ValueError(f"scores must be [N] with N >= {roots}, got {scores.shape}")
    if not bool((scores <= 0.0).all()):
        raise ValueError("scores must be numbers at most 0")
    if not fixed >= 0.0:
        raise ValueError(f"fixed must be at least 0 seconds, got {fixed}")
    seconds = np.array([fixed + cost(rows) for rows in range(roots, len(scores) + 1)])
    if not (seconds > 0.0).all():
        raise ValueError("a round must take more than 0 seconds at every size")
    tokens = np.cumsum(np.exp(scores))[roots - 1 :]
    return roots + int(np.argmax(tokens / seconds))
