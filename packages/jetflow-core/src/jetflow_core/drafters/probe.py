"""Drafters that know or avoid the right answer: they exercise every path of an engine.

An engine is lossless when its output does not depend on the drafter. These three reach what a
trained head seldom does: full acceptance, no acceptance, and accepted rows that are far apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jetflow_tree import Candidates
from numpy.typing import NDArray
from torch import Tensor


class ProbeDrafter:
    """Knows the plain continuation of its prompts and hides it among other candidates.

    Args:
        answers: plain continuation by prompt.
        vocab_size: tokens are below it.
        depth: depths offered.
        width: candidates a depth.
        seed: of the ranks and scores.
        right: whether the right token is among the candidates at all.
        first: whether it is always the best one; otherwise its rank is random.

    Raises:
        ValueError: a vocabulary too small for ``width`` candidates besides the right one.
    """

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        *,
        vocab_size: int,
        depth: int,
        width: int,
        seed: int,
        right: bool,
        first: bool,
    ) -> None:
        if vocab_size <= width:
            raise ValueError(f"width {width} needs a vocabulary above it, got {vocab_size}")
        self._answers = answers
        self._vocab, self.max_depth, self._width = vocab_size, depth, width
        self._right, self._first = right, first
        self._rng = np.random.default_rng(seed)
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._seen: dict[int, int] = {}

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        """Starts at the end of ``prompt``."""
        self._prompts[slot] = tuple(prompt)
        self._seen[slot] = 0

    def observe(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Counts committed rows, to know where the request stands."""
        self._seen[slot] += len(tokens)

    def context_length(self, slot: int) -> int:
        """Committed rows observed: one less than the committed tokens, in every engine."""
        return self._seen[slot]

    def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Candidates]:
        """Candidates with the right token in its place, as far as the answer is known."""
        return [self._propose(slot, depth) for slot in slots]

    def _propose(self, slot: int, depth: int) -> Candidates:
        prompt = self._prompts[slot]
        done = self._seen[slot] + 1 - len(prompt)
        known = list(self._answers[prompt][done : done + depth])
        tokens = np.stack([
            self._row(known[d] if d < len(known) else None) for d in range(depth)
        ])  # fmt: skip
        scores = self._scores(depth)
        total = np.log(np.exp(scores).sum(axis=1, keepdims=True))
        return Candidates.marginal(tokens, scores - total - 1e-3)

    def _scores(self, depth: int) -> NDArray[np.float64]:
        """Descending scores; steep ones where the first is right, so that its path comes first."""
        if self._first:
            return np.tile(-3.0 * np.arange(self._width), (depth, 1))
        return np.sort(self._rng.normal(scale=1.5, size=(depth, self._width)), axis=1)[:, ::-1]

    def _row(self, right: int | None) -> NDArray[np.int64]:
        wrong = self._rng.choice(self._vocab, size=self._width + 1, replace=False)
        row = wrong[wrong != right][: self._width].astype(np.int64)
        if right is not None and self._right:
            row[0 if self._first else int(self._rng.integers(self._width))] = right
        return row


def oracle(
    answers: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int, *, depth: int = 15
) -> ProbeDrafter:
    """Its best path is the right one."""
    return ProbeDrafter(answers, vocab_size=vocab_size, depth=depth, width=4, seed=0,
                        right=True, first=True)  # fmt: skip


def always_wrong(
    answers: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int, *, depth: int = 15
) -> ProbeDrafter:
    """None of its candidates is ever right."""
    return ProbeDrafter(answers, vocab_size=vocab_size, depth=depth, width=4, seed=1,
                        right=False, first=False)  # fmt: skip


def random_tree(
    answers: Mapping[tuple[int, ...], Sequence[int]], vocab_size: int, *, depth: int = 15
) -> ProbeDrafter:
    """The right path hides at random ranks, so accepted rows are not adjacent."""
    return ProbeDrafter(answers, vocab_size=vocab_size, depth=depth, width=4, seed=2,
                        right=True, first=False)  # fmt: skip
