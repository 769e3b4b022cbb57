"""The lazy frontier of exact best-first: nodes of candidate tables, best first.

A node waits in the heap only once it can be next: when its better sibling or its parent (of
which it is the best child) has been taken. A node so costs two pushes, whatever the width. The
rows of the tables are sorted by numpy in one call and read in place: turning a path-conditioned
table into Python lists would cost more than the whole expansion.

Order: score descending, then depth ascending, then the request (where several grow together),
then the lexicographic path of candidate indices. All but the score are one integer, the path
written as digits behind a leading digit: a deeper path is a larger number, and paths of one depth
compare digit by digit.

Scores are kept negated, because Python's heap gives the smallest first; negation is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heappushpop
from math import inf

import numpy as np

from jetflow_tree.candidates import Candidates

# (negated score, order key, parent row, level, place in the sorted rows, negated score of the
# parent, key of the parent times the base). Keys are unique: a comparison never looks past them.
Node = tuple[float, int, int, int, int, float, int]


class Expansion:
    """The rows of a best-first expansion, the roots first, as four lists of one length."""

    __slots__ = ("indices", "levels", "negated", "parents")

    def __init__(self, starts: Sequence[int]) -> None:
        self.parents = [-1] * len(starts)
        """Row of the parent, -1 for a root."""
        self.levels = [start - 1 for start in starts]
        """Level of the row; the depth is this minus the level of its root."""
        self.indices = [0] * len(starts)
        """Candidate index within the level, 0 for a root."""
        self.negated = [0.0] * len(starts)
        """Negated score."""


class Frontier:
    """Best-first expansion of one candidate table, or of several in one heap.

    Levels are the depths of all tables in one list, each table closed by an empty level.
    """

    __slots__ = ("_begin", "_costs", "_order", "_starts", "_step", "_stride")

    def __init__(self, tables: Sequence[Candidates], max_children: int | None) -> None:
        """Sort the tables.

        Args:
            tables: One candidate table a root; root r is row r.
            max_children: Most children of a node, at least 1; None for no limit.
        """
        shapes = [table.log_probs.shape for table in tables]
        depth = sum([shape[0] for shape in shapes])
        width = max([shape[2] for shape in shapes])
        # A marginal table among conditioned ones says the same below each of its candidates.
        parents = width if any([shape[1] > 1 for shape in shapes]) else 1
        # A closing +inf ends the walk along siblings, so it needs no length.
        costs = np.full((depth, parents, width + 1), inf)
        self._stride: int = width + 1
        # How far the rows of two parents lie apart; a marginal table has one row for all.
        self._step = self._stride if parents > 1 else 0
        self._starts: list[int] = []
        self._begin: list[int] = []
        row = 0
        for table, shape in zip(tables, shapes, strict=True):
            end = row + shape[0]
            own = shape[1] if shape[1] > 1 else parents
            np.negative(table.log_probs, out=costs[row:end, :own, : shape[2]])
            self._starts.append(len(self._begin))
            size = parents * self._stride
            self._begin += [*range(row * size, end * size, size), -1]
            row = end
        self._order: Sequence[int] = costs.argsort(axis=2, kind="stable").reshape(-1).data
        costs.sort(axis=2)
        if max_children is not None:
            costs[:, :, max_children:] = inf
        self._costs: Sequence[float] = costs.reshape(-1).data

    def take(self, count: int) -> Expansion:
        """The roots and below them the ``count`` best nodes in order, or all there are."""
        out = Expansion(self._starts)
        heap = self._root_children()
        if count < 1 or not heap:
            return out
        if len(self._costs) < 2 * count:
            # A list is read faster, but only many reads pay for making one.
            self._costs, self._order = list(self._costs), list(self._order)
        costs, order, begin, step = self._costs, self._order, self._begin, self._step
        parents, levels, indices, negateds = out.parents, out.levels, out.indices, out.negated
        base = self._stride
        node = heappop(heap)
        for row in range(len(parents), len(parents) + count):
            negated, key, parent, level, place, above, stem = node
            following = above + costs[place + 1]
            if following == negated:
                place = self._settle_ties(place, above)
                costs, order = self._costs, self._order
                key = stem + order[place]
            index = order[place]
            parents.append(parent)
            levels.append(level)
            indices.append(index)
            negateds.append(negated)
            if following < inf:
                place += 1
                heappush(heap, (following, stem + order[place], parent, level, place, above, stem))
            level += 1
            place = begin[level]
            if place >= 0:
                place += step * index
                below = negated + costs[place]
                if below < inf:
                    stem = key * base
                    node = heappushpop(
                        heap, (below, stem + order[place], row, level, place, negated, stem)
                    )
                    continue
            if not heap:
                break
            node = heappop(heap)
        return out

    def _root_children(self) -> list[Node]:
        heap: list[Node] = []
        roots = len(self._starts)
        for root, level in enumerate(self._starts):
            place = self._begin[level]
            if place >= 0 and self._costs[place] < inf:
                stem = (roots + root) * self._stride
                cost, index = self._costs[place], self._order[place]
                heap.append((cost, stem + index, root, level, place, 0.0, stem))
        heapify(heap)
        return heap

    def _settle_ties(self, place: int, above: float) -> int:
        """The place of the sibling that comes first in the run of equal scores at ``place``.

        Siblings are sorted by log-probability. Two that differ there may still get one score,
        because adding the parent's score rounds, and the order then asks for the lower index
        first. The run is inspected when its first member comes up. A change holds below this one
        parent only, so it goes into a copy of the row behind all others.
        """
        costs, order, stride = self._costs, self._order, self._stride
        score = above + costs[place]
        if place % stride and above + costs[place - 1] == score:
            return place
        end = place + 1
        while above + costs[end] == score:
            end += 1
        run = sorted(range(place, end), key=order.__getitem__)
        if run == list(range(place, end)):
            return place
        start = place - place % stride
        moved = [*range(start, place), *run, *range(end, start + stride)]
        self._costs = [*costs, *(costs[i] for i in moved)]
        self._order = [*order, *(order[i] for i in moved)]
        return len(costs) + place - start
