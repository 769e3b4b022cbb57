"""Walks of stored answers: what decoding would do, without asking the target again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jetflow_tree import BestFirst, Candidates, Chain, TreeBuilder, lazy_walk
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Walked:
    """Tokens and rounds of a walk; tau is tokens per round, the correction token included."""

    tokens: int
    rounds: int

    @property
    def tau(self) -> float:
        """Tokens per round."""
        return self.tokens / self.rounds if self.rounds else 0.0


def policies(budgets: Sequence[int]) -> dict[str, tuple[TreeBuilder, int]]:
    """Builders and budgets to compare; budgets count the root."""
    named: dict[str, tuple[TreeBuilder, int]] = {"chain": (Chain(), max(budgets))}
    return named | {str(budget): (BestFirst(), budget) for budget in budgets}


def walk_answer(
    tokens: NDArray[np.int64],
    first: int,
    drafts: Sequence[Candidates],
    builder: TreeBuilder,
    budget: int,
) -> tuple[int, int]:
    """Tokens and rounds of decoding ``tokens[first + 1 :]``.

    Args:
        tokens: prompt and answer.
        first: the first root, the prompt's last token.
        drafts: candidates for each root ``first``, ``first + 1``, ...
        builder: makes the trees.
        budget: rows of a tree.
    """
    at, rounds, end = first, 0, len(tokens) - 1
    while at < end:
        tree = builder.build(int(tokens[at]), drafts[at - first], budget)
        here, depths = at, tree.depths

        def stored(row: int, here: int = here, depths: NDArray[np.int32] = depths) -> int:
            place = here + 1 + int(depths[row])
            return int(tokens[place]) if place <= end else -1

        at = min(end, at + len(lazy_walk(tree, stored).nodes) + 1)
        rounds += 1
    return end - first, rounds
