"""What the decode loop asks of its parts; any object of the right shape fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jetflow_tree import Accepted, Candidates, Tree
from torch import Tensor


class RowOutput(Protocol):
    """What the target says at some rows."""

    @property
    def logits(self) -> Tensor:
        """``[N, vocab]``, in the target's type and on its device."""

    @property
    def features(self) -> Tensor:
        """``[N, taps * hidden]``, the tapped layers' outputs side by side."""


class TargetSession(Protocol):
    """The target with the keys and values of several requests, one a slot.

    Between rounds the cache of a slot holds every committed token but the last, the root.
    """

    def prefill(self, slot: int, tokens: Sequence[int]) -> RowOutput:
        """Starts a request: commits all of ``tokens`` but the last and gives their features."""

    def verify(self, slots: Sequence[int], trees: Sequence[Tree]) -> Sequence[RowOutput]:
        """Runs each slot's tree (row 0 its root) in one pass of the target; commits nothing."""

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keeps these rows of the slot's last tree: row 0, then the accepted ones."""

    def release(self, slot: int) -> None:
        """Frees the slot."""


class Drafter(Protocol):
    """Whatever proposes candidates for the tokens after a root."""

    @property
    def max_depth(self) -> int:
        """Deepest depth it can propose."""

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        """A new request takes ``slot``; nothing of the old one may remain."""

    def observe(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Rows that were committed, in order, with the target's features ``[n, F]`` at them."""

    def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Candidates]:
        """Candidates for each slot, at most ``depth`` deep; less where it can go no further."""


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds that the phases of one round took, for the whole batch."""

    draft: float = 0.0
    build: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    commit: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the whole round."""
        return self.draft + self.build + self.verify + self.accept + self.commit


class TreePlanner(Protocol):
    """Decides how deep to draft and which trees to verify, and learns from what came of it."""

    def begin(self) -> None:
        """New requests come: what was learnt from other texts may not hold for theirs."""

    def depth(self, requests: int) -> int:
        """Depth to draft in the next round for that many requests; 0: no draft, plain steps."""

    def grow(
        self, roots: Sequence[int], candidates: Sequence[Candidates], max_depths: Sequence[int]
    ) -> list[Tree]:
        """One tree a request, none deeper than its ``max_depths`` entry."""

    def learn(self, trees: Sequence[Tree], accepted: Sequence[Accepted], phases: Phases) -> None:
        """What became of the trees of the last round, and the time that it took."""
