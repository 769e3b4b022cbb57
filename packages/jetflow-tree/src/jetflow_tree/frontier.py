"""The lazy frontier of exact best-first: nodes of a candidate table, best first, one at a time.

A node waits in the heap only once it can be next: when its better sibling or its parent (of
which it is the best child) has been taken. Each step so costs two pushes, whatever the width.

Order: score descending, then depth ascending, then the lexicographic path of candidate indices.
The last two are one integer, the path written as digits behind a leading 1: a deeper path is a
larger number, and paths of one depth compare digit by digit.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from math import inf

import numpy as np
from numpy.typing import NDArray

from jetflow_tree.candidates import Candidates

# The children of one parent, best first: negated log-probabilities with a closing +inf, so that
# the walk along siblings needs no length, and the candidate index of each.
Siblings = tuple[list[float], list[int]]

# (negated score, path key, parent row, depth, candidate, place among siblings, parent's negated
# score, siblings). The key is unique, so a comparison never looks past it.
Node = tuple[float, int, int, int, int, int, float, Siblings]


class SiblingTable:
    """The candidate table with its rows sorted best first, each only when it is first needed."""

    __slots__ = ("_limit", "_rows", "_table")

    def __init__(self, candidates: Candidates, max_children: int) -> None:
        self._table: NDArray[np.float64] = candidates.log_probs
        self._limit = min(max_children, candidates.width)
        parents = self._table.shape[1]
        self._rows: list[list[Siblings | None]] = [[None] * parents for _ in self._table]

    def below(self, depth: int, parent: int) -> Siblings:
        """The children, at ``depth`` + 1, of candidate ``parent`` of ``depth``."""
        level = self._rows[depth]
        if len(level) == 1:
            parent = 0
        siblings = level[parent]
        if siblings is None:
            siblings = level[parent] = self._sorted(depth, parent)
        return siblings

    def _sorted(self, depth: int, parent: int) -> Siblings:
        values = (-self._table[depth, parent]).tolist()
        order = sorted(range(len(values)), key=values.__getitem__)[: self._limit]
        return [*(values[i] for i in order), inf], [*order, 0]


def best_first_nodes(candidates: Candidates, max_children: int) -> Iterator[Node]:
    """Every node of the candidate tree except the root, in the order of best-first.

    Args:
        candidates: The table to expand.
        max_children: Most children a node may have; the width or more means no limit.

    Yields:
        One entry a node. The row of a node is its place in this stream, counted from 1.
    """
    last = candidates.depth
    if not last:
        return
    table = SiblingTable(candidates, max_children)
    base = max(candidates.width, 2)
    heap: list[Node] = []
    _push_first(heap, table.below(0, 0), (0.0, base, 0, 1))
    row = 0
    while heap:
        node = heap[0]
        negated, key, parent, depth, index, place, above, siblings = node
        costs, order = siblings
        place += 1
        cost = above + costs[place]
        if cost == negated and _reorder_ties(heap):
            continue
        yield node
        row += 1
        if cost < inf:
            sibling = order[place]
            entry = (cost, key + sibling - index, parent, depth, sibling, place, above, siblings)
            heapreplace(heap, entry)
        else:
            heappop(heap)
        if depth < last:
            _push_first(heap, table.below(depth, index), (negated, key * base, row, depth + 1))


def _push_first(heap: list[Node], siblings: Siblings, parent: tuple[float, int, int, int]) -> None:
    negated, key, row, depth = parent
    cost = negated + siblings[0][0]
    if cost < inf:
        first = siblings[1][0]
        heappush(heap, (cost, key + first, row, depth, first, 0, negated, siblings))


def _reorder_ties(heap: list[Node]) -> bool:
    """Put the siblings that tie with the top of the heap in index order; whether any moved.

    Siblings are sorted by log-probability. Two that differ there may still get one score, because
    adding the parent's score rounds, and the order then asks for the lower index first. The run
    is inspected once, when its first member is on top; a change concerns this parent alone, so it
    goes into a copy of the siblings.
    """
    negated, key, parent, depth, index, start, above, (costs, order) = heap[0]
    if start and above + costs[start - 1] == negated:
        return False
    end = start + 1
    while above + costs[end] == negated:
        end += 1
    run = sorted(range(start, end), key=order.__getitem__)
    if run == list(range(start, end)):
        return False
    changed = (
        [*costs[:start], *(costs[i] for i in run), *costs[end:]],
        [*order[:start], *(order[i] for i in run), *order[end:]],
    )
    first = changed[1][start]
    heap[0] = (negated, key + first - index, parent, depth, first, start, above, changed)
    return True
