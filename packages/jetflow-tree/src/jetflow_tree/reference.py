"""Slow, obvious twins of the fast functions, for tests, benchmarks and readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np
from numpy.typing import NDArray

from jetflow_tree.candidates import Candidates
from jetflow_tree.tree import Tree, trusted_tree


def every_node(candidates: Candidates) -> Iterator[tuple[float, tuple[int, ...]]]:
    """All possible nodes as (score, path of candidate indices); exponentially many."""
    table = candidates.log_probs

    def below(path: tuple[int, ...], score: float) -> Iterator[tuple[float, tuple[int, ...]]]:
        if len(path) == candidates.depth:
            return
        parent = path[-1] if path and table.shape[1] > 1 else 0
        for index in range(candidates.width):
            total = score + float(table[len(path), parent, index])
            if total > -np.inf:
                yield total, (*path, index)
                yield from below((*path, index), total)

    return below((), 0.0)


def brute_force(root: int, candidates: Candidates, budget: int) -> Tree:
    """The best-first tree by sorting every possible node."""
    ranked = sorted(every_node(candidates), key=lambda node: (-node[0], len(node[1]), node[1]))
    kept = ranked[: budget - 1]
    row = {(): 0} | {path: i + 1 for i, (_, path) in enumerate(kept)}
    return Tree(
        np.array([root, *(candidates.tokens[len(path) - 1, path[-1]] for _, path in kept)]),
        np.array([-1, *(row[path[:-1]] for _, path in kept)]),
        np.array([0, *(len(path) for _, path in kept)]),
        np.array([0.0, *(score for score, _ in kept)]),
    )


@dataclass(frozen=True, slots=True)
class ReadyLists:
    """A candidate table as nested Python lists, each row sorted best first."""

    tokens: list[list[int]]
    """[D][K] token ids."""
    log_probs: list[list[list[float]]]
    """[D][P][K] log-probabilities, best first."""
    order: list[list[list[int]]]
    """[D][P][K] candidate index of each."""

    @classmethod
    def of(cls, candidates: Candidates) -> ReadyLists:
        """The lists of a candidate table."""
        table = candidates.log_probs
        order = np.argsort(-table, axis=2, kind="stable")
        ranked = np.take_along_axis(table, order, axis=2)
        return cls(candidates.tokens.tolist(), ranked.tolist(), order.tolist())


Rows = tuple[list[int], list[int], list[int], list[float]]
"""Tokens, parents, depths and scores of a tree as lists."""


def heap_over_lists(root: int, lists: ReadyLists, budget: int) -> Rows:
    """Best-first as one would first write it; ties go to the node that was pushed first."""
    depth = len(lists.tokens)
    width = len(lists.tokens[0]) if depth else 0
    tokens, parents, depths, scores = [root], [-1], [0], [0.0]
    age = count()
    heap: list[tuple[float, int, int, int, int, int, float]] = []
    if depth:
        heap.append((-lists.log_probs[0][0][0], next(age), 0, 0, 0, 0, 0.0))
    while heap and len(tokens) < budget:
        negated, _, parent, level, origin, place, above = heappop(heap)
        if negated == np.inf:
            break
        row = len(tokens)
        index = lists.order[level][origin][place]
        tokens.append(lists.tokens[level][index])
        parents.append(parent)
        depths.append(level + 1)
        scores.append(-negated)
        if place + 1 < width:
            cost = above - lists.log_probs[level][origin][place + 1]
            heappush(heap, (cost, next(age), parent, level, origin, place + 1, above))
        if level + 1 < depth:
            below = lists.log_probs[level + 1]
            first = index if len(below) > 1 else 0
            cost = negated - below[first][0]
            heappush(heap, (cost, next(age), row, level + 1, first, 0, negated))
    return tokens, parents, depths, scores


def plain_heap(root: int, candidates: Candidates, budget: int) -> Tree:
    """The plain heap with the input and the output of a builder: the benchmark's yardstick."""
    tokens, parents, depths, scores = heap_over_lists(root, ReadyLists.of(candidates), budget)
    return trusted_tree(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int32),
        np.array(depths, dtype=np.int32),
        np.array(scores, dtype=np.float64),
    )


def ancestor_closure(tree: Tree) -> NDArray[np.bool_]:
    """The ancestor matrix from its definition: walk up from every row."""
    seen = np.zeros((tree.num_nodes, tree.num_nodes), dtype=np.bool_)
    for row in range(tree.num_nodes):
        above = row
        while above >= 0:
            seen[row, above] = True
            above = int(tree.parents[above])
    return seen


def walk_by_children(tree: Tree, picks: NDArray[np.int64]) -> tuple[tuple[int, ...], int]:
    """The accepted rows and the correction token, by looking at the children at each step."""
    nodes: list[int] = []
    current = 0
    while True:
        wanted = int(picks[current])
        matching = [row for row in tree.children(current) if tree.tokens[row] == wanted]
        if not matching:
            return tuple(nodes), wanted
        current = matching[0]
        nodes.append(current)
