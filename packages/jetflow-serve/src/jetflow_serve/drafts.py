"""Drafts of all running requests, whichever runner runs them: whom to draft for, and what grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetflow_core.head.config import HeadConfig
from jetflow_tree import Accepted, Candidates, Tree

from jetflow_serve.auto.sharing import Sharing
from jetflow_serve.blocks import reach
from jetflow_serve.counters import Counters
from jetflow_serve.growing import grow_scored, scored
from jetflow_serve.options import ServeOptions
from jetflow_serve.reasons import Choice, Shape
from jetflow_serve.stage import Staged


@dataclass(frozen=True, slots=True)
class Picked:
    """A request of a step for which a token was picked."""

    request: str
    index: int
    """Its place in the batch."""
    root: int
    """Its last committed token."""
    place: int
    """Where that token stands in the text."""
    choice: Choice
    temperature: float


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is drafted for."""

    request: str
    index: int
    root: int
    place: int
    depth: int
    """Deepest depth wanted, at least 1."""
    nodes: int
    """Most nodes of its tree, at least 1."""
    shape: Shape
    temperature: float


class Drafts:
    """The tree of each request that is verified next, and what was counted.

    Args:
        head: the head's description.
        options: the user's.
        longest: places that the engine serves, ``max_model_len``.
        sharing: one budget for all trees of a step; None: every tree has its own.
    """

    def __init__(
        self,
        head: HeadConfig,
        options: ServeOptions,
        longest: int,
        sharing: Sharing | None = None,
    ) -> None:
        self._head, self._options, self._longest = head, options, longest
        self.sharing = sharing
        self.restart()

    def restart(self) -> None:
        """Nothing is drafted, and nothing was counted."""
        self.trees: dict[str, Tree] = {}
        self.counters = Counters()
        self._walked: dict[str, tuple[Tree, Accepted]] = {}

    def forget(self, request: str) -> None:
        """Drops the tree of a request, if there is one."""
        self.trees.pop(request, None)

    def verified(self, entry: Staged, accepted: Accepted, moved: int) -> None:
        """A tree was walked, and so many rows of the cache follow it."""
        self._walked[entry.request] = (entry.tree, accepted)
        self.counters.verified(entry.tree, accepted, entry.branches, moved)

    def plan(self, picked: Sequence[Picked], nodes: int) -> list[Ask]:
        """Whom to draft for after a step; called once a step, when its trees were walked.

        Args:
            picked: all requests of the step for which a token was picked.
            nodes: most nodes of one tree.
        """
        for each in picked:
            if each.request not in self._walked:
                self.counters.decoded()
        walked, self._walked = self._walked, {}
        self.counters.batch = (len(picked), len(picked))
        if self.sharing is not None:
            places = [each.place for each in picked]
            context = sum(places) / max(len(places), 1)
            rows = self.sharing.begin([each.request for each in picked], context, walked)
            nodes = min(nodes, rows - 1)
            self.counters.auto_steps = self.sharing.steps
        return [ask for each in picked if (ask := self._ask(each, nodes)) is not None]

    def grow(self, asks: Sequence[Ask], candidates: Sequence[Candidates]) -> list[list[int]]:
        """The tokens of each request's new tree, root excluded, parents first."""
        stated = [
            scored(found, ask.temperature, self._head)
            for ask, found in zip(asks, candidates, strict=True)
        ]
        believed = stated if self.sharing is None else self.sharing.calibrated(stated)
        grown = {
            ask.request: grow_scored(ask.root, table, ask.shape, ask.nodes, self._options)
            for ask, table in zip(asks, believed, strict=True)
        }
        if self.sharing is not None:
            drafted = zip(grown, zip(grown.values(), stated, strict=True), strict=True)
            grown = self.sharing.cut(dict(drafted))
        self.trees |= grown
        requests, rows = self.counters.batch
        self.counters.batch = (requests, rows + sum(t.num_nodes - 1 for t in grown.values()))
        return [grown[ask.request].tokens[1:].tolist() for ask in asks]

    def _ask(self, picked: Picked, nodes: int) -> Ask | None:
        choice = picked.choice
        self.counters.drafted(choice.shape, choice.reason)
        if choice.shape is Shape.PLAIN:
            return None
        if choice.budget is not None:
            nodes = min(nodes, choice.budget - 1)
        wanted = min(self._options.depth or self._head.max_depth, nodes)
        depth = reach(self._head, wanted, picked.place, self._longest)
        if not depth:
            return None
        return Ask(
            picked.request, picked.index, picked.root, picked.place, depth, nodes, choice.shape,
            picked.temperature,
        )  # fmt: skip
