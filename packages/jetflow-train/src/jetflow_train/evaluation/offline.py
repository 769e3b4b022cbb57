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
from jetflow_train.evaluation.drafts import DraftedTexts, draft_passes
from jetflow_train.evaluation.policies import OWN, Policy
from jetflow_train.evaluation.second_pass import SecondPass
from jetflow_train.evaluation.second_walk import walk_twice_drafted
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
    head_slots: int
    """Slots that the head runs a round, at full depth."""

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
        ValueError: the head's logits are not finite, or a second pass is asked of a head that was
            not trained for it.
    """
    shape = (2, head.config.max_depth)
    hits = {name: np.zeros(shape, dtype=np.int64) for name in policies}
    once = {
        name: [each for each in some if not each.second_pass] for name, some in policies.items()
    }
    twice = {name: [each for each in some if each.second_pass] for name, some in policies.items()}
    again: list[dict[str, list[Walk]]] = []

    def tasks() -> Iterator[WalkTask]:
        names = list(policies)
        for some in draft_passes(target, head, answers.texts, names, answers.temperature):
            again.extend(_walked_twice(target, head, some, twice))
            for text, drafts in zip(some.texts, some.drafts, strict=True):
                for name, counts in hits.items():
                    _count_hits(counts, text, drafts[name])
                yield WalkTask(text=text, drafts=drafts, policies=once)

    found = list((walkers or Walkers()).walk(tasks()))
    block = head.num_slots(head.config.max_depth)
    return Evaluation(
        walked=tuple(
            walked
            for name, some in policies.items()
            for walked in _in_order(name, some, found, again, block)
        ),
        top1={name: Top1(right=right, places=places) for name, (right, places) in hits.items()},
    )


def _in_order(
    name: str,
    policies: Sequence[Policy],
    once: Sequence[Mapping[str, Sequence[Walk]]],
    twice: Sequence[Mapping[str, Sequence[Walk]]],
    block: int,
) -> Iterator[Walked]:
    """The walks of all texts, policy by policy, from what ``walk_task`` gives for each text."""
    of_kind = {
        second: zip(*(each[name] for each in some), strict=True)
        for second, some in ((False, once), (True, twice))
    }
    for policy in policies:
        walks = next(of_kind[policy.second_pass])
        slots = policy.head_slots(block)
        yield Walked(candidates=name, policy=policy, walks=walks, head_slots=slots)


def _walked_twice(
    target: FrozenTarget, head: DraftHead, some: DraftedTexts, policies: Policies
) -> list[dict[str, list[Walk]]]:
    """What ``walk_task`` gives for each of the texts, of policies with a second pass."""
    found: list[dict[str, list[Walk]]] = [{name: [] for name in policies} for _ in some.texts]
    for name, asked in policies.items():
        if not asked:
            continue
        again = SecondPass(target, head, some.features, own=name == OWN)
        drafts = [each[name] for each in some.drafts]
        for policy in asked:
            walks = walk_twice_drafted(some.texts, drafts, policy, again.children)
            for each, walk in zip(found, walks, strict=True):
                each[name].append(walk)
    return found


def _count_hits(counts: NDArray[np.int64], text: StoredText, drafts: Drafts) -> None:
    best = drafts.tokens[:, :, 0]
    for depth in range(min(best.shape[1], len(best))):
        stored = text.tokens[text.prompt_len + depth :]
        counts[0, depth] += int((best[: len(stored), depth] == stored).sum())
        counts[1, depth] += len(stored)
