"""Drafts of all running requests, whichever runner runs them: whom to draft for, and what grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetflow_core.head.config import HeadConfig
from jetflow_tree import Accepted, Candidates, Tree

from jetflow_serve.blocks import reach
from jetflow_serve.counters import Counters
from jetflow_serve.growing import grow
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
    """

    def __init__(self, head: HeadConfig, options: ServeOptions, longest: int) -> None:
        self._head, self._options, self._longest = head, options, longest
        self.trees: dict[str, Tree] = {}
        self.counters = Counters()
        self._verified: set[str] = set()

    def forget(self, request: str) -> None:
        """Drops the tree of a request, if there is one."""
        self.trees.pop(request, None)

    def verified(self, entry: Staged, accepted: Accepted, moved: int) -> None:
        """A tree was walked, and so many rows of the cache follow it."""
        self._verified.add(entry.request)
        self.counters.verified(entry.tree, accepted, entry.branches, moved)

    def plan(self, picked: Sequence[Picked], nodes: int) -> list[Ask]:
        """Whom to draft for after a step; called once a step, when its trees were walked.

        Args:
            picked: all requests of the step for which a token was picked.
            nodes: most nodes of one tree.
        """
        for each in picked:
            if each.request not in self._verified:
                self.counters.decoded()
        self._verified.clear()
        self.counters.batch = (len(picked), len(picked))
        return [ask for each in picked if (ask := self._ask(each, nodes)) is not None]

    def grow(self, asks: Sequence[Ask], candidates: Sequence[Candidates]) -> list[list[int]]:
        """The tokens of each request's new tree, root excluded, parents first."""
        trees = [
            grow(ask.root, found, ask.shape, ask.nodes, ask.temperature, self._head, self._options)
            for ask, found in zip(asks, candidates, strict=True)
        ]
        self.trees |= {ask.request: tree for ask, tree in zip(asks, trees, strict=True)}
        requests, rows = self.counters.batch
        drafted = sum(tree.num_nodes - 1 for tree in trees)
        self.counters.batch = (requests, rows + drafted)
        return [tree.tokens[1:].tolist() for tree in trees]

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
