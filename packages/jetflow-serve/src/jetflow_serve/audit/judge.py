"""Which requests an audit can judge, and how two answers to one request are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """Of a finished request what decides whether it can be judged."""

    greedy: bool
    tokens: int
    """That it wrote."""
    drafted: bool
    """Whether anything may have been drafted for it."""
    structured_output: bool
    only_tokens: bool
    """Its prompt is token ids and nothing else."""


SAMPLED, EMPTY, OFF, GRAMMAR, INPUTS, BUSY = (
    "sampled", "empty", "off", "structured_output", "inputs", "busy",
)  # fmt: skip
SKIPS = (SAMPLED, EMPTY, OFF, GRAMMAR, INPUTS, BUSY)
"""Every reason to leave out a request that was drawn."""


def skip_reason(request: Finished) -> str | None:
    """Why a request cannot be judged; None: it can.

    Two sampled answers differ without a fault, so only greedy ones are compared. A grammar or an
    input that is no token would have to be prepared again outside of the engine's loop.
    """
    for reason, holds in (
        (SAMPLED, not request.greedy),
        (EMPTY, request.tokens < 1),
        (OFF, not request.drafted),
        (GRAMMAR, request.structured_output),
        (INPUTS, not request.only_tokens),
    ):
        if holds:
            return reason
    return None


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where decoding without speculation writes another token."""

    place: int
    """Tokens of the answer before it."""
    written: int
    """The token that was answered; -1 where the answer had ended."""
    again: int
    """The token of plain decoding."""
    gap: float | None
    """By how much plain decoding's logits favour its own; None if they were not told."""


class Comparison:
    """Follows plain decoding of one request, token by token.

    Args:
        answer: what was written with speculation.
    """

    def __init__(self, answer: Sequence[int]) -> None:
        self._answer = list(answer)
        self._place = 0

    def take(
        self, tokens: Sequence[int], scores: Sequence[Mapping[int, float]]
    ) -> Divergence | None:
        """Compares the next tokens of plain decoding.

        Args:
            tokens: in their order.
            scores: log-probabilities of the likeliest tokens at each; may be shorter.

        Returns:
            The first difference, if these tokens have it.
        """
        for number, token in enumerate(tokens):
            place = self._place + number
            written = self._answer[place] if place < len(self._answer) else -1
            if token != written:
                known = scores[number] if number < len(scores) else {}
                return Divergence(place, written, token, _gap(known, written, token))
        self._place += len(tokens)
        return None

    def end(self) -> Divergence | None:
        """Plain decoding ended: a difference if the answer goes on."""
        if self._place == len(self._answer):
            return None
        return Divergence(self._place, self._answer[self._place], -1, None)


def _gap(scores: Mapping[int, float], written: int, again: int) -> float | None:
    if written not in scores or again not in scores:
        return None
    gap = scores[again] - scores[written]
    # Scores before penalties may favour the other one, and then they decided nothing.
    return gap if gap >= 0 and math.isfinite(gap) else None
