"""A finished request: its tokens, its text, and how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetflow_core.decode import DecodeRequest, Round
from jetflow_core.picker import Pick
from jetflow_core.stopping import FinishReason


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished request."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """New tokens; a stop token is the last and included."""
    text: str
    """Their text, special tokens and stop strings left out."""
    finish: FinishReason
    seed: int
    """The seed that repeats it."""
    picks: tuple[Pick, ...]
    """One a token, with log-probabilities if they were asked for."""
    rounds: tuple[Round, ...]

    @classmethod
    def of(cls, request: DecodeRequest, rounds: Sequence[Round]) -> Generation:
        """What all rounds of a request gave; without any it asked for no token."""
        picks = tuple(pick for each in rounds for pick in each.picks)
        return cls(
            prompt=request.prompt,
            tokens=tuple(pick.token for pick in picks),
            text="".join(each.text for each in rounds),
            finish=(rounds[-1].finish if rounds else None) or "length",
            seed=request.picker.seed,
            picks=picks,
            rounds=tuple(rounds),
        )

    @property
    def tau(self) -> float:
        """Tokens per round: tokens / rounds; a round gives its accepted tokens and one more."""
        return len(self.tokens) / len(self.rounds) if self.rounds else 0.0
