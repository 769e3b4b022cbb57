"""Offline tau: walk what the target answered with a head's trees (see ``walk`` for why it holds).

No target pass is needed beyond the features. This is the quick check of a head; rounds of the
real engine are the figure to publish, and on the same texts they are equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jetflow_core.head.model import DraftHead
from numpy.typing import NDArray

from jetflow_train.evaluation.answers import Answers
from jetflow_train.evaluation.drafts import draft_texts
from jetflow_train.evaluation.policies import Policy
from jetflow_train.evaluation.walk import Drafts, StoredText, Walk, WalkTask
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.target import FrozenTarget

Policies = Mapping[str, Sequence[Policy]]
"""By the candidates they are grown from: ``policies.OWN`` or ``policies.BASE``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Walked:
    """All texts walked with the trees of one policy."""

    candidates: str
    policy: Policy
    walks: tuple[Walk, ...]

    @property
    def tokens(self) -> int:
        """New tokens."""
        return sum(sum(walk.sizes) for walk in self.walks)

    @property
    def rounds(self) -> int:
        """Rounds that they take."""
        return sum(len(walk.sizes) for walk in self.walks)

    @property
    def tau(self) -> float:
        """Tokens per round, 0.0 without rounds."""
        return self.tokens / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Top1:
    """How often each depth's best candidate was the text's token, over all roots.

    Attributes:
        right: int64 ``[D]``, places where it was.
        places: int64 ``[D]``, places where the text has a token of this depth.
    """

    right: NDArray[np.int64]
    places: NDArray[np.int64]

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of right ones by depth."""
        return tuple(int(r) / max(1, int(n)) for r, n in zip(self.right, self.places, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Evaluation:
    """What one head does on the answers to one set at one temperature."""

    walked: tuple[Walked, ...]
    top1: Mapping[str, Top1]
    """By the name of the candidates."""

    def of(self, candidates: str) -> dict[str, Walked]:
        """The walks with these candidates, by policy."""
        return {each.policy.name: each for each in self.walked if each.candidates == candidates}


def evaluate(
    target: FrozenTarget,
    head: DraftHead,
    answers: Answers,
    policies: Policies,
    walkers: Walkers | None = None,
) -> Evaluation:
    """Walks ``answers`` with every policy.

    Args:
        target: the target that wrote them.
        head: the head, on the target's device.
        answers: what it wrote, greedy or sampled.
        policies: what to grow from which candidates.
        walkers: processes that walk; None: this one.

    Raises:
        ValueError: the head's logits are not finite.
    """
    shape = (2, head.config.max_depth)
    hits = {name: np.zeros(shape, dtype=np.int64) for name in policies}

    def tasks() -> Iterator[WalkTask]:
        drafted = draft_texts(target, head, answers.texts, list(policies))
        for text, drafts in zip(answers.texts, drafted, strict=True):
            for name, counts in hits.items():
                _count_hits(counts, text, drafts[name])
            yield WalkTask(text=text, drafts=drafts, policies=policies)

    found = list((walkers or Walkers()).walk(tasks()))
    walked = tuple(
        Walked(candidates=name, policy=policy, walks=tuple(each[name][place] for each in found))
        for name, some in policies.items()
        for place, policy in enumerate(some)
    )
    return Evaluation(
        walked=walked,
        top1={name: Top1(right=right, places=places) for name, (right, places) in hits.items()},
    )


def _count_hits(counts: NDArray[np.int64], text: StoredText, drafts: Drafts) -> None:
    best = drafts.tokens[:, :, 0]
    for depth in range(min(best.shape[1], len(best))):
        stored = text.tokens[text.prompt_len + depth :]
        counts[0, depth] += int((best[: len(stored), depth] == stored).sum())
        counts[1, depth] += len(stored)
