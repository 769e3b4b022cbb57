"""Exact best-first trees: the most probable nodes a budget can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Protocol

import numpy as np

from jetflow_tree.candidates import Candidates
from jetflow_tree.frontier import Frontier
from jetflow_tree.score import Scoring
from jetflow_tree.tree import Tree, trusted_tree
from jetflow_tree.whole import check_count, is_whole

_LARGEST_TOKEN = 2**63 - 1


class TreeBuilder(Protocol):
    """Turns what a draft head proposes into the tree of one round."""

    def build(self, root: int, candidates: Candidates, budget: int) -> Tree:
        """A tree of at most ``budget`` rows, root included."""
        ...


def check_request(root: int, budget: int) -> None:
    """Raise ValueError unless the root is a token and the budget holds at least it."""
    if not is_whole(root) or not 0 <= root <= _LARGEST_TOKEN:
        raise ValueError(f"the root must be a token, a whole number from 0, got {root!r}")
    if not is_whole(budget) or budget < 1:
        raise ValueError(
            f"budget counts the root and must be a whole number, at least 1, got {budget!r}"
        )


@dataclass(frozen=True, slots=True)
class BestFirst:
    """The ``budget`` most probable nodes, exactly, in O(B log B) for any width.

    Rows come in the order of best-first, so the tree of a smaller budget is a prefix of the tree
    of a larger one. Ties are settled by depth (shallow first), then by the path of candidate
    indices. No tree of the same budget has a larger expected length under the same scores.

    Examples:
        >>> two = Candidates.marginal([[5, 9], [3, 4]], [[-0.1, -2.4], [-0.1, -2.4]])
        >>> BestFirst().build(7, two, budget=3).tokens.tolist()
        [7, 5, 3]
    """

    scoring: Scoring | None = None
    """Reshapes the candidates before the tree is built; none leaves them as they are."""
    max_children: int | None = None
    """Most children a node may have, at least 1; none, or more than the width, sets no limit."""

    def __post_init__(self) -> None:
        if self.max_children is not None:
            check_count("max_children", self.max_children)

    def build(self, root: int, candidates: Candidates, budget: int) -> Tree:
        """The best-first tree.

        Args:
            root: Token id of the root, the last committed token.
            candidates: What the draft head proposes below it.
            budget: Rows of the tree, root included.

        Returns:
            A tree of ``budget`` rows, or fewer when the candidates hold fewer possible nodes.

        Raises:
            ValueError: If budget is below 1 or root is negative.
        """
        check_request(root, budget)
        scored = candidates if self.scoring is None else self.scoring(candidates)
        rows = Frontier([scored], self.max_children).take(budget - 1)
        if len(rows.parents) == 1:
            return Tree.root_only(root)
        depths = np.array(rows.levels, dtype=np.int32)
        tokens = scored.tokens[depths, np.array(rows.indices)]
        tokens[0] = root
        depths += 1
        parents = np.array(rows.parents, dtype=np.int32)
        return trusted_tree(tokens, parents, depths, 0.0 - np.array(rows.negated))


def best_first_paths(
    root: int,
    children: Callable[[tuple[int, ...]], Iterable[tuple[int, float]]],
    budget: int,
    max_depth: int,
) -> Tree:
    """The exact best-first tree when only a callback knows the branch scores.

    Children are asked for once for each node that enters the tree above ``max_depth``, and only
    as many are drawn from the iterable as the tree may need, so it can be a lazy generator.

    Args:
        root: Token id of the root.
        children: Maps the drafted tokens from depth 1 to a node (empty for the root) to pairs of
            (token, conditional log-probability), best first, tokens distinct.
        budget: Rows of the tree, root included.
        max_depth: Deepest depth to expand to; 0 gives the root alone.

    Returns:
        The tree, rows in the order of best-first; ties as in BestFirst, the place in the
        callback's order standing for the candidate index.

    Raises:
        ValueError: If budget is below 1, max_depth is negative, or the callback yields NaN, a
            log-probability above 0 or above its predecessor's, no token, or a token twice.
    """
    check_request(root, budget)
    check_count("max_depth", max_depth, 0)
    tokens, parents, depths, scores = [root], [-1], [0], [0.0]
    paths: list[tuple[int, ...]] = [()]
    heap: list[tuple[float, int, tuple[int, ...], int, int, Iterator[tuple[int, float]]]] = []

    def push(parent: int, place: tuple[int, ...], draws: Iterator[tuple[int, float]]) -> None:
        drawn = next(draws, None)
        if drawn is None:
            return
        token, log_prob = drawn
        negated = -(scores[parent] + log_prob)
        if negated < inf:
            heappush(heap, (negated, len(place), place, parent, token, draws))

    if max_depth and budget > 1:
        push(0, (0,), _checked(children(()), ()))
    while heap:
        negated, depth, place, parent, token, draws = heappop(heap)
        row = len(tokens)
        tokens.append(token)
        parents.append(parent)
        depths.append(depth)
        scores.append(0.0 - negated)
        paths.append((*paths[parent], token))
        if row + 1 == budget:
            break
        push(parent, (*place[:-1], place[-1] + 1), draws)
        if depth < max_depth:
            push(row, (*place, 0), _checked(children(paths[row]), paths[row]))
    return Tree(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int32),
        np.array(depths, dtype=np.int32),
        np.array(scores),
    )


def _checked(
    pairs: Iterable[tuple[int, float]], path: tuple[int, ...]
) -> Iterator[tuple[int, float]]:
    bound, seen = 0.0, set[int]()
    for token, log_prob in pairs:
        if not log_prob <= bound:
            raise ValueError(
                f"children of path {path} must come best first with log-probabilities at most 0, "
                f"got {log_prob} after {bound}"
            )
        if not is_whole(token):
            raise ValueError(f"children of path {path} must be token ids, got {token!r}")
        if token in seen:
            raise ValueError(f"children of path {path} hold the token {token} twice")
        bound = log_prob
        seen.add(token)
        yield token, log_prob
