"""One budget for all trees of a step: chosen by load, shared by chance, learnt from what was kept.

Everything that chooses and learns is jetflow-core's; here requests have names, come and go between
steps, and trees are numpy's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np
import torch
from jetflow_core.rounds import AutoBudget, Choice, LiveBatch, TreeBatch
from jetflow_core.rounds.auto.batch_trees import BatchTrees
from jetflow_tree import Accepted, Candidates, Tree
from jetflow_tree.torch import DeviceTrees, from_trees, stack_candidates
from numpy.typing import NDArray

WHYS = ("no trees", "first look", "pays", "spent", "probe", "plain pays")
"""Why ``AutoBudget`` chooses as it does."""
OTHER = "other"
Walked = tuple[Tree, Accepted]
"""A tree as it was verified, and what was kept of it."""


class Sharing(Protocol):
    """Decides how many rows the trees of a step have together."""

    steps: Counter[str]
    """Choices so far, by why."""

    def begin(self, picked: Sequence[str], context: float, walked: Mapping[str, Walked]) -> int:
        """Most rows of one tree of the step; 1: nobody drafts.

        Args:
            picked: all requests that go on.
            context: their tokens, the mean.
            walked: what the step before gave, by request.
        """

    def calibrated(self, candidates: Sequence[Candidates]) -> list[Candidates]:
        """Candidates as far as they are to be believed."""

    def cut(self, drafted: Mapping[str, tuple[Tree, Candidates]]) -> dict[str, Tree]:
        """The trees cut to what they have together; one not drafted for has its root.

        Args:
            drafted: by request its tree, of calibrated candidates, and the candidates before that.
        """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Step:
    """What is remembered of a step until its trees were walked."""

    choice: Choice
    picked: frozenset[str]
    candidates: Mapping[str, Candidates]
    promise: NDArray[np.float64]


class AutoShares:
    """``Sharing`` by ``AutoBudget``.

    Args:
        budget: chooses; its costs must be known when the first step is planned.
        depth: D, the deepest depth drafted.
    """

    def __init__(self, budget: AutoBudget, depth: int) -> None:
        self._budget, self._depth = budget, depth
        self.steps: Counter[str] = Counter()
        self._shared = BatchTrees.empty(depth, torch.device("cpu"))
        self._choice: Choice | None = None
        self._picked: tuple[str, ...] = ()
        self._waiting: _Step | None = None

    def begin(self, picked: Sequence[str], context: float, walked: Mapping[str, Walked]) -> int:
        """As ``Sharing`` says; takes in the step before."""
        self._learn(picked, walked)
        self._choice, self._picked = None, tuple(picked)
        if not picked:
            return 1
        live = len(picked)
        batch = LiveBatch(requests=tuple(range(live)), slots=live, context=context)
        self._choice = choice = self._budget.share(batch)
        self.steps[choice.why if choice.why in WHYS else OTHER] += 1
        return choice.rows[0]

    def calibrated(self, candidates: Sequence[Candidates]) -> list[Candidates]:
        """As ``Sharing`` says, by acceptance of each depth and rank so far."""
        if not candidates:
            return []
        _, log_probs = stack_candidates(candidates, device="cpu")
        changed = self._shared.acceptance.calibrated(log_probs).numpy()
        return [
            each.with_log_probs(table[: each.depth, : each.log_probs.shape[1], : each.width])
            for each, table in zip(candidates, changed, strict=True)
        ]

    def cut(self, drafted: Mapping[str, tuple[Tree, Candidates]]) -> dict[str, Tree]:
        """As ``Sharing`` says; the likeliest rows of all trees stay."""
        choice = self._choice
        if choice is None:
            return {}
        promise = np.zeros(len(self._shared.promise))
        cut = {}
        if choice.rows[0] > 1:
            trees = [
                drafted[name][0] if name in drafted else Tree.root_only(0) for name in self._picked
            ]
            counts = self._counts(trees, choice.total)
            promise = self._shared.promise.numpy().copy()
            cut = {
                name: tree.trim(count)
                for name, tree, count in zip(self._picked, trees, counts, strict=True)
                if name in drafted
            }
        self._waiting = _Step(
            choice=choice,
            picked=frozenset(self._picked),
            candidates={name: candidates for name, (_, candidates) in drafted.items()},
            promise=promise,
        )
        return cut

    def _counts(self, trees: Sequence[Tree], total: int) -> list[int]:
        """Rows that each tree keeps."""
        self._shared.total.fill_(total)
        live = torch.ones(len(trees), dtype=torch.bool)
        counts: list[int] = self._shared.counts(
            _batch(_stacked(trees, self._depth)), live, deepest=self._depth
        ).tolist()
        return counts

    def _learn(self, picked: Sequence[str], walked: Mapping[str, Walked]) -> None:
        step, self._waiting = self._waiting, None
        if step is None:
            return
        # Who left in the meantime tells nothing.
        still = [name for name in picked if name in step.picked]
        kept = sum(len(walked[name][1].nodes) for name in still if name in walked)
        self._budget.learn(step.choice, len(still), kept, step.promise)
        told = [name for name in still if name in walked and name in step.candidates]
        if told:
            self._take_in([step.candidates[name] for name in told], [walked[n] for n in told])

    def _take_in(self, candidates: Sequence[Candidates], walked: Sequence[Walked]) -> None:
        trees = [tree for tree, _ in walked]
        path = np.full((len(walked), self._depth + 1), -1)
        for line, (_, accepted) in zip(path, walked, strict=True):
            line[: 1 + len(accepted.nodes)] = (0, *accepted.nodes)
        tokens, log_probs = stack_candidates(candidates, device="cpu")
        self._shared.acceptance.learn(
            tokens,
            log_probs,
            _batch(_stacked(trees, self._depth)),
            torch.tensor([tree.num_nodes for tree in trees]),
            torch.from_numpy(path),
        )


class EvenShares:
    """``Sharing`` of a fixed number of rows, as equal as can be: what steps are measured with.

    Args:
        rows: most of one tree, 1 or more.
        total: of all trees.
    """

    def __init__(self, rows: int, total: int) -> None:
        self._rows, self._total = rows, total
        self._picked: tuple[str, ...] = ()
        self.steps: Counter[str] = Counter()

    def begin(self, picked: Sequence[str], context: float, walked: Mapping[str, Walked]) -> int:
        """The rows it was made with."""
        self._picked = tuple(picked)
        return self._rows

    def calibrated(self, candidates: Sequence[Candidates]) -> list[Candidates]:
        """The candidates as they are."""
        return list(candidates)

    def cut(self, drafted: Mapping[str, tuple[Tree, Candidates]]) -> dict[str, Tree]:
        """Equal shares; the first ones have what is left over."""
        each, more = divmod(self._total, max(len(self._picked), 1))
        shares = {name: each + (n < more) for n, name in enumerate(self._picked)}
        return {
            name: tree.trim(min(tree.num_nodes, max(shares[name], 1)))
            for name, (tree, _) in drafted.items()
        }


def _stacked(trees: Sequence[Tree], depth: int) -> DeviceTrees:
    rows = max(tree.num_nodes for tree in trees)
    return from_trees(trees, rows, max_depth=depth, device="cpu")


def _batch(trees: DeviceTrees) -> TreeBatch:
    """Tokens, parents, depths and scores are all that is read of it here."""
    return cast(TreeBatch, trees)
