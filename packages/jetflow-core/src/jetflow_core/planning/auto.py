"""A budget that follows what a pass costs here and what the head achieves on this text.

A round that drafts ``d`` deep and verifies ``n`` rows takes ``draft(d) + verify(n)`` seconds and is
expected to give ``1 + sum of path probabilities`` tokens. Depth is chosen by the rates seen so far;
the rows of each round by what its own tree promises, at the going rate: a node is worth verifying
while its chance of acceptance buys more tokens than its time would elsewhere. Where drafting does
not pay, rounds are plain, and a cheap draft is tried again at growing distances.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from jetflow_tree import Accepted, Candidates, Tree, TreeBuilder
from numpy.typing import NDArray

from jetflow_core.planning.costs import StepCosts
from jetflow_core.protocols import Phases

_FIRST_PAUSE, _LONGEST_PAUSE = 8, 128
_FIRST_DEPTH_OF_MANY = 4
_MEMORY = 0.95
_LOOK_DEEP_EVERY = 24
_MARGIN = 1.03
# What a text has shown counts this much for the next one.
_CARRIED_OVER = 0.1


class AutoPlanner:
    """Chooses depth and budget every round from measured costs and observed acceptance.

    Args:
        builder: grows the trees; its trees must be nested in the budget (``BestFirst``).
        draft: cost of one request's draft by depth.
        verify: cost of a pass by rows, over all requests of the batch.
        max_depth: deepest depth the drafter offers.
        max_rows: most rows one request's tree may have.
        draft_growth: share of that draft cost which each further request adds.
    """

    def __init__(
        self,
        builder: TreeBuilder,
        *,
        draft: StepCosts,
        verify: StepCosts,
        max_depth: int,
        max_rows: int,
        draft_growth: float = 0.0,
    ) -> None:
        self._builder, self._draft, self._verify = builder, draft, verify
        self._draft_growth = draft_growth
        self._max_depth, self._max_rows = max_depth, max_rows
        grid = {1, 2, 3, 4, 5, 6, 8, 10, 12, max_depth}
        self._grid = np.array(sorted(d for d in grid if d <= max_depth), dtype=np.int64)
        self._trust = 1.0
        self._promised = self._kept = 1e-3
        self._gain = np.zeros(len(self._grid))
        self._spent = np.zeros(len(self._grid))
        self._pause, self._next_pause = 0, _FIRST_PAUSE
        self._trial = False
        self._rounds_drafted = 0
        self._drafted_depth = 0

    def begin(self) -> None:
        """Tries a draft soon, and lets this text outweigh what earlier ones have shown."""
        self._pause, self._next_pause = 0, _FIRST_PAUSE
        self._trial = self._rounds_drafted > 0
        self._gain *= _CARRIED_OVER
        self._spent *= _CARRIED_OVER

    def depth(self, requests: int) -> int:
        """Depth for the next round; 0 while drafting does not pay."""
        self._drafted_depth = self._choose_depth(requests)
        return self._drafted_depth

    def _choose_depth(self, requests: int) -> int:
        if self._max_depth < 1 or self._max_rows < 2:
            return 0
        if self._pause > 0:
            self._pause -= 1
            self._trial = self._pause == 0
            return 0
        if self._rounds_drafted == 0:
            # For one request a deep look costs little; for many it can cost whole passes.
            return self._max_depth if requests == 1 else min(self._max_depth, _FIRST_DEPTH_OF_MANY)
        rates = self._gain / np.maximum(self._spent, 1e-12)
        best = int(rates.argmax())
        if self._trial:
            self._trial = False
            return int(self._grid[best])
        patience = self._patience(requests)
        if rates[best] < _MARGIN * self._plain_rate(requests):
            self._pause = patience * self._next_pause
            self._next_pause = min(2 * self._next_pause, _LONGEST_PAUSE)
            return 0
        self._next_pause = _FIRST_PAUSE
        if self._rounds_drafted % (patience * _LOOK_DEEP_EVERY) == 0:
            return self._max_depth
        return int(self._grid[best])

    def _patience(self, requests: int) -> int:
        """How many times longer to wait between trials, where one costs a good part of a pass."""
        trial = self._draft_time(min(self._max_depth, _FIRST_DEPTH_OF_MANY), requests)
        return max(1, ceil(4.0 * (trial / self._verify.at(requests) - 0.25)))

    def _plain_rate(self, requests: int) -> float:
        return requests / self._verify.at(requests)

    def _draft_time(self, depth: int, requests: int) -> float:
        return self._draft.at(depth) * (1.0 + self._draft_growth * (requests - 1))

    def grow(
        self, roots: Sequence[int], candidates: Sequence[Candidates], max_depths: Sequence[int]
    ) -> list[Tree]:
        """Trees that together are worth their time at the going rate."""
        trees = [
            self._builder.build(root, drafted.truncate(min(drafted.depth, deepest)), self._max_rows)
            for root, drafted, deepest in zip(roots, candidates, max_depths, strict=True)
        ]
        owner = np.concatenate([np.full(t.num_nodes - 1, i) for i, t in enumerate(trees)])
        chance = np.exp(np.concatenate([t.scores[1:] for t in trees])) * self._trust
        deep = np.concatenate([t.depths[1:] for t in trees])
        order = np.argsort(-chance, kind="stable")
        owner, chance, deep = owner[order], chance[order], deep[order]
        self._judge_depths(chance, deep, len(trees))
        rows = self._worthwhile(chance, self._going_rate(len(trees)), len(trees))
        sizes = np.bincount(owner[:rows], minlength=len(trees)) + 1
        return [tree.trim(int(size)) for tree, size in zip(trees, sizes, strict=True)]

    def _going_rate(self, requests: int) -> float:
        """Tokens a second that time is worth: the best of what was seen and plain decoding."""
        seen = self._gain / np.maximum(self._spent, 1e-12)
        return max(float(seen.max()), self._plain_rate(requests))

    def _worthwhile(self, chance: NDArray[np.float64], rate: float, requests: int) -> int:
        """Nodes, best first, that maximise expected tokens less their time at ``rate``."""
        cost = self._verify.curve(np.arange(len(chance) + 1) + requests)
        value = np.concatenate([[0.0], np.cumsum(chance)]) - rate * cost
        return int(value.argmax())

    def _judge_depths(
        self, chance: NDArray[np.float64], deep: NDArray[np.int32], requests: int
    ) -> None:
        """What each depth of the grid would have given in this round, and cost."""
        for i, depth in enumerate(self._grid):
            if depth > self._drafted_depth:
                break
            within = chance[deep <= depth]
            time = self._draft_time(int(depth), requests) + self._verify.curve(
                np.arange(len(within) + 1) + requests
            )
            tokens = requests + np.concatenate([[0.0], np.cumsum(within)])
            best = int((tokens / time).argmax())
            self._gain[i] = _MEMORY * self._gain[i] + tokens[best]
            self._spent[i] = _MEMORY * self._spent[i] + time[best]

    def learn(self, trees: Sequence[Tree], accepted: Sequence[Accepted], phases: Phases) -> None:
        """Follows costs, and how far the scores' promises were kept."""
        self._verify.follow(sum(tree.num_nodes for tree in trees), phases.total - phases.draft)
        if self._drafted_depth == 0:
            return
        self._rounds_drafted += 1
        factor = self._draft_time(self._drafted_depth, len(trees)) / self._draft.at(
            self._drafted_depth
        )
        self._draft.follow(self._drafted_depth, max(phases.draft, 1e-9) / factor)
        promised = sum(float(np.exp(tree.scores[1:]).sum()) for tree in trees)
        kept = sum(len(walk.nodes) for walk in accepted)
        self._promised = _MEMORY * self._promised + promised
        self._kept = _MEMORY * self._kept + kept
        # A few rounds say little: start from "promises are kept" and let them outweigh it.
        prior = 4.0
        self._trust = min(1.5, (self._kept + prior) / (self._promised + prior))

    def as_dict(self) -> dict[str, object]:
        """Present costs and estimates, for reports."""
        rates = self._gain / np.maximum(self._spent, 1e-12)
        return {
            "draft_costs": self._draft.as_dict(),
            "draft_growth": self._draft_growth,
            "verify_costs": self._verify.as_dict(),
            "trust": self._trust,
            "expected_rate_by_depth": dict(
                zip(map(int, self._grid), map(float, rates), strict=True)
            ),
        }
