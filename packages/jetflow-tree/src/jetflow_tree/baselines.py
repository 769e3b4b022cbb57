"""Named baselines: the chain, and the builder that gives every expanded node all its children."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from jetflow_tree.build import check_request
from jetflow_tree.candidates import Candidates
from jetflow_tree.tree import Tree, trusted_tree
from jetflow_tree.whole import check_count


@dataclass(frozen=True, slots=True)
class Chain:
    """The best child of the best child and so on: speculation without a tree.

    Examples:
        >>> two = Candidates.marginal([[5, 9], [3, 4]], [[-0.1, -2.4], [-0.1, -2.4]])
        >>> Chain().build(7, two, budget=64).tokens.tolist()
        [7, 5, 3]
    """

    def build(self, root: int, candidates: Candidates, budget: int) -> Tree:
        """A chain of ``budget`` rows, or fewer when the candidates end sooner.

        Args:
            root: Token id of the root.
            candidates: What the draft head proposes below it.
            budget: Rows of the chain, root included.

        Returns:
            The chain.

        Raises:
            ValueError: If budget is below 1 or root is negative.
        """
        check_request(root, budget)
        rows = _Rows(root)
        table = candidates.log_probs
        index = 0
        for depth in range(min(candidates.depth, budget - 1)):
            choices = table[depth, index if table.shape[1] > 1 else 0]
            index = int(choices.argmax())
            score = rows.scores[-1] + float(choices[index])
            if score == -np.inf:
                break
            rows.add(int(candidates.tokens[depth, index]), depth, depth + 1, score)
        return rows.tree()


@dataclass(frozen=True, slots=True)
class AllChildren:
    """The reference implementation's builder, kept to compare with.

    It takes the best node and adds its ``width`` best children, all of them, until the budget is
    full. At the edge of the budget the tree is therefore not the set of the best nodes.
    """

    width: int = 7
    """Children of an expanded node; more than the candidates a depth have is clamped."""

    def __post_init__(self) -> None:
        check_count("width", self.width)

    def build(self, root: int, candidates: Candidates, budget: int) -> Tree:
        """The all-children tree, rows in the order they are added.

        Args:
            root: Token id of the root.
            candidates: What the draft head proposes below it.
            budget: Rows of the tree, root included.

        Returns:
            A tree of ``budget`` rows, or fewer when the candidates hold fewer possible nodes.

        Raises:
            ValueError: If budget is below 1 or root is negative.
        """
        check_request(root, budget)
        rows = _Rows(root)
        heap: list[tuple[float, int, tuple[int, ...]]] = [(0.0, 0, ())]
        taken: dict[tuple[int, ...], int] = {(): 0}
        while heap and len(rows.tokens) < budget:
            negated, depth, path = heappop(heap)
            if depth == candidates.depth:
                continue
            for index, log_prob in _best_children(candidates, path, self.width):
                if len(rows.tokens) == budget:
                    break
                child = (*path, index)
                score = log_prob - negated
                if score == -np.inf:
                    break
                token = int(candidates.tokens[depth, index])
                taken[child] = rows.add(token, taken[path], depth + 1, score)
                heappush(heap, (-score, depth + 1, child))
        return rows.tree()


class _Rows:
    """Rows of a tree under construction."""

    __slots__ = ("depths", "parents", "scores", "tokens")

    def __init__(self, root: int) -> None:
        self.tokens = [root]
        self.parents = [-1]
        self.depths = [0]
        self.scores = [0.0]

    def add(self, token: int, parent: int, depth: int, score: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(depth)
        self.scores.append(score)
        return len(self.tokens) - 1

    def tree(self) -> Tree:
        return trusted_tree(
            np.array(self.tokens, dtype=np.int64),
            np.array(self.parents, dtype=np.int32),
            np.array(self.depths, dtype=np.int32),
            np.array(self.scores, dtype=np.float64),
        )


def _best_children(
    candidates: Candidates, path: tuple[int, ...], width: int
) -> list[tuple[int, float]]:
    table = candidates.log_probs
    parent = path[-1] if path and table.shape[1] > 1 else 0
    choices: NDArray[np.float64] = table[len(path), parent]
    best = np.argsort(-choices, kind="stable")[:width]
    return [(int(i), float(choices[i])) for i in best]
