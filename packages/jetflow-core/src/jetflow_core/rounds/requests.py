"""Requests as a round can serve them, and by name what it cannot do yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jetflow_core.ending import Ending
from jetflow_core.picker import TokenPicker
from jetflow_core.prompt_ids import prompt_ids
from jetflow_core.rounds.laws import BIASES, Picks
from jetflow_core.rounds.state import STOPS
from jetflow_core.sampling import SamplingParams
from jetflow_core.stopping import FinishReason
from jetflow_core.text import TextDecoder


class NotOnDevice(ValueError):
    """A request asks for something that only the plain engine does."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundRequest:
    """One prompt with the rules for its continuation; used up by one run."""

    prompt: tuple[int, ...]
    params: SamplingParams
    """With a seed."""
    ending: Ending
    stops: tuple[int, ...]
    """Tokens that end it, ascending."""

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        eos_ids: Sequence[int],
        vocab_size: int,
        tokenizer: TextDecoder | None = None,
    ) -> RoundRequest:
        """A checked request.

        Args:
            prompt: token ids, at least one.
            params: its rules.
            eos_ids: the target's end-of-sequence ids.
            vocab_size: entries of a row of logits.
            tokenizer: for text and stop strings; None where only tokens matter.

        Raises:
            NotOnDevice: a parameter is not served here; named, with the way to the plain engine.
            ValueError: an id is not in the vocabulary, or the prompt is empty.
        """
        ids = prompt_ids(prompt)
        if not ids:
            raise ValueError("the prompt holds no token; at least one is needed")
        check_on_device(params, eos_ids)
        # The picker's own checks hold here as well: every engine refuses the same ids.
        seeded = TokenPicker(params, ids, eos_ids, vocab_size).params
        stops = tuple(sorted(params.stopping_ids(eos_ids)))
        return cls(ids, seeded, Ending(params, eos_ids, tokenizer), stops)

    @property
    def temperature(self) -> float:
        """Temperature of the picks; 0 where always the best token is taken."""
        return 0.0 if self.params.is_greedy else self.params.temperature


def picks_of(requests: Iterable[tuple[RoundRequest, int]]) -> Picks:
    """What the picks of these requests need, with how many new tokens each has at least."""
    drawn = edited = cut = False
    for request, written in requests:
        params = request.params
        drawn |= request.temperature > 0
        edited |= bool(params.logit_bias)
        edited |= bool(request.stops) and written < params.min_new_tokens
        limits = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        cut |= limits and request.temperature > 0
    return Picks(drawn=drawn, edited=edited, cut=cut)


def check_on_device(params: SamplingParams, eos_ids: Sequence[int]) -> None:
    """Refuses what would need the text so far, or a row of logits on the host.

    Raises:
        NotOnDevice: naming every such parameter with its value.
    """
    stops = params.stopping_ids(eos_ids)
    asked = {
        "repetition_penalty": params.repetition_penalty != 1.0,
        "frequency_penalty": params.frequency_penalty != 0.0,
        "presence_penalty": params.presence_penalty != 0.0,
        "logit_bias": len(params.logit_bias) > BIASES,
        "bad_words": bool(params.bad_words),
        "min_new_tokens": params.min_new_tokens > 0 and len(stops) > STOPS,
        "logprobs": params.logprobs is not None,
        "logits_processor": params.logits_processor is not None,
    }
    found = [f"{name}={getattr(params, name)!r}" for name, used in asked.items() if used]
    if found:
        raise NotOnDevice(
            f"{', '.join(found)} cannot be served in rounds on the device: nothing there follows "
            f"what was written before, at most {BIASES} tokens are biased, and at most {STOPS} are "
            "kept from stopping too early. jetflow_core.engine.Engine takes every parameter"
        )


@dataclass(slots=True)
class Finished:
    """What became of a request, filled as its rounds are read."""

    prompt: tuple[int, ...]
    seed: int
    tokens: list[int] = field(default_factory=list)
    """New tokens; a stop token is the last and included."""
    text: str = ""
    """Their text, special tokens and stop strings left out; empty without a tokenizer."""
    finish: FinishReason | None = None
    """None while it runs."""
    rounds: int = 0
    """Rounds that gave it tokens."""
    drafts_refused: int = 0
    """Rounds whose draft was no distribution, so that they were plain steps."""
    preemptions: int = 0
    """How often its pages were taken away and computed again."""

    @property
    def tau(self) -> float:
        """Tokens per round; 0 without a round."""
        return len(self.tokens) / self.rounds if self.rounds else 0.0
