"""Walks of stored answers: the rounds that decoding would need, without asking the target again.

A tree is grown from the text so far, before the target speaks; of the request it may know the
temperature, never a pick. Verification then lets the target pick one token at each row that the
walk visits, by argmax or with noise that belongs to the token's position, and goes on to the child
that holds it. So the tokens that a decoding emits are the picks along its walks, and where these
picks are known, because the finished text is stored, the rounds follow from them: at temperature 0
and above it alike. The walk mirrors the decode loop of jetflow_core to its ends. No draft goes
deeper than the request has tokens left, and the token that ends a request is the target's own,
never an accepted one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jetflow_tree import Accepted, Candidates, Tree, calibrated, lazy_walk
from jetflow_tree.stats import AcceptanceStats
from numpy.typing import NDArray

from jetflow_train.evaluation.policies import Policy

# No drafted token is negative, so a walk that looks for it stops.
_NO_TOKEN = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StoredText:
    """A prompt and the target's answer to it."""

    tokens: NDArray[np.int64]
    """Prompt, then answer; a stop token is the last and included."""
    prompt_len: int
    limit: int
    """Most tokens that the answer might have had."""

    @property
    def first(self) -> int:
        """Place of the first root, the prompt's last token."""
        return self.prompt_len - 1

    @property
    def answer(self) -> list[int]:
        """The answer's tokens."""
        answer: list[int] = self.tokens[self.prompt_len :].tolist()
        return answer


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """A head's candidates at each root of one text, at the head's full depth.

    Attributes:
        tokens: int64 ``[roots, D, K]``.
        log_probs: ``[roots, D, P, K]`` of any floating type.
        positions: the head drafts for no position from this one on.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.floating]
    positions: int
    score_temperature: float = 1.0
    """At which the decode loop reads the scores for such texts (``jetflow_core.head.scores``)."""


@dataclass(slots=True)
class Walk:
    """What decoding one text takes."""

    sizes: list[int] = field(default_factory=list)
    """Tokens that each round gives."""
    stats: AcceptanceStats = field(default_factory=AcceptanceStats)
    by_candidate: list[int] = field(default_factory=list)
    """Entry r - 1: accepted tokens that are the r-th candidate of their depth."""


class LazyCandidates:
    """Candidates of the places that walks come to, each made once for all policies."""

    def __init__(self, text: StoredText, drafts: Drafts) -> None:
        self._text, self._drafts = text, drafts
        self._made: dict[int, Candidates] = {}
        fitted, depth = drafts.score_temperature, drafts.tokens.shape[1]
        self._scoring = None if fitted == 1.0 else calibrated([fitted] * depth)

    def at(self, place: int) -> Candidates:
        """Candidates below the root at ``place``, as deep as the decode loop would draft."""
        if place not in self._made:
            index, drafts = place - self._text.first, self._drafts
            left = min(self._text.limit - index, drafts.positions - place) - 1
            depth = max(0, min(left, drafts.tokens.shape[1]))
            made = Candidates(
                drafts.tokens[index, :depth], drafts.log_probs[index, :depth].astype(np.float64)
            )
            self._made[place] = self._scoring(made) if self._scoring else made
        return self._made[place]


class Rounds:
    """Decoding of one text, round by round, whatever grows the trees."""

    def __init__(self, text: StoredText) -> None:
        self._tokens: list[int] = text.tokens.tolist()
        self._end = len(self._tokens) - 1
        self.at = text.first
        """Place of the root."""
        self.found = Walk()

    @property
    def over(self) -> bool:
        """Whether the whole text is there."""
        return self.at >= self._end

    @property
    def root(self) -> int:
        """The last token so far."""
        return self._tokens[self.at]

    def take(self, tree: Tree) -> Accepted:
        """One round with ``tree``, which grew below the root; what it keeps comes back."""
        tokens, end, below, depths = self._tokens, self._end, self.at + 1, tree.depths.tolist()

        def pick(row: int) -> int:
            place = below + depths[row]
            return tokens[place] if place < end else _NO_TOKEN

        accepted = lazy_walk(tree, pick)
        self.found.stats.add(tree, accepted)
        self.found.sizes.append(len(accepted.nodes) + 1)
        self.at += self.found.sizes[-1]
        return accepted

    def count(self, drafted: Candidates, rows: Sequence[int], tokens: Sequence[int]) -> None:
        """Counts at which place among their candidates accepted tokens stood.

        Args:
            drafted: candidates.
            rows: for each token the row of ``drafted`` that proposed it.
            tokens: the accepted ones.
        """
        counts = self.found.by_candidate
        counts += [0] * (drafted.width - len(counts))
        for row, token in zip(rows, tokens, strict=True):
            counts[int((drafted.tokens[row] == token).argmax())] += 1


def walk(text: StoredText, candidates: LazyCandidates, policy: Policy) -> Walk:
    """Rounds of decoding ``text`` with the trees of ``policy``."""
    rounds = Rounds(text)
    while not rounds.over:
        drafted = candidates.at(rounds.at)
        accepted = rounds.take(policy.build(rounds.root, drafted))
        rounds.count(drafted, range(len(accepted.tokens)), accepted.tokens)
    return rounds.found


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WalkTask:
    """One text with what it is walked with; everything a process needs, and no torch."""

    text: StoredText
    drafts: Mapping[str, Drafts]
    """By the name of the candidates."""
    policies: Mapping[str, Sequence[Policy]]
    """Of each of them."""


def walk_task(task: WalkTask) -> dict[str, list[Walk]]:
    """The walks of a task: for each kind of candidates one a policy, in order."""
    found = {}
    for name, drafts in task.drafts.items():
        candidates = LazyCandidates(task.text, drafts)
        found[name] = [walk(task.text, candidates, policy) for policy in task.policies[name]]
    return found
