"""What a request asks of the sampler: every parameter, its range, and one place that checks it."""

from __future__ import annotations

import dataclasses
import math
import numbers
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    # Only for types: options are checked before torch, which takes seconds, is imported.
    from torch import Tensor

LogitsProcessor: TypeAlias = "Callable[[Sequence[int], Sequence[int], Tensor], Tensor]"
"""`(prompt ids, generated ids, logits [V] float32) -> logits [V]`; -inf forbids a token for good.

It may change the tensor it is given. A tree asks it about branches that are later rejected, so
its answer must follow from its arguments alone."""

MAX_SEED = 2**64 - 1
# Farther than anybody needs, and near enough that no logit overflows float32.
MAX_BIAS, MAX_PENALTY = 1e30, 1e6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """The parameters of one request; checked once, when it is made.

    The defaults are greedy decoding. `TokenPicker` says in which order the steps are applied.

    Raises:
        ValueError: A field has the wrong type or lies outside its range; the message names the
            field, the value and what is allowed.
    """

    max_new_tokens: int = 128
    """Most tokens to generate, >= 0. With 0 the result is empty."""
    temperature: float = 0.0
    """0 is greedy; above 0 the logits are divided by it."""
    top_k: int = 0
    """Keep the k best tokens; 0 keeps all. Of equal logits the lower id is kept."""
    top_p: float = 1.0
    """Keep the fewest best tokens whose probability reaches p, 0 < p <= 1; 1 keeps all."""
    min_p: float = 0.0
    """Keep tokens at least this many times as probable as the best one, 0 to 1; 0 keeps all."""
    repetition_penalty: float = 1.0
    """1e-6 to 1e6. Tokens of prompt or answer: positive logits divided, others multiplied."""
    frequency_penalty: float = 0.0
    """-2 to 2. Subtracted once for each time a token is in the answer so far."""
    presence_penalty: float = 0.0
    """-2 to 2. Subtracted once if a token is in the answer so far."""
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Added to the logits of these token ids; -1e30 to 1e30, which a float32 logit can take."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that must not appear in the answer (see `bad_word_ids` for strings)."""
    min_new_tokens: int = 0
    """No token that would stop the answer before so many others; at most `max_new_tokens`."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the answer beside the end-of-sequence ids."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; the text is cut before them."""
    ignore_eos: bool = False
    """Whether the end-of-sequence ids are ordinary tokens."""
    seed: int | None = None
    """Key of the noise, 0 to 2**64 - 1; None draws one a request (see `with_seed`)."""
    logprobs: int | None = None
    """How many alternatives to report a token; 0 reports the token alone, None nothing."""
    logits_processor: LogitsProcessor | None = None
    """A user's function on the raw logits of a row, applied before everything else."""

    def __post_init__(self) -> None:
        _integer(self, "max_new_tokens", 0)
        _real(self, "temperature", 0.0, math.inf)
        _integer(self, "top_k", 0)
        _real(self, "top_p", 0.0, 1.0, open_low=True)
        _real(self, "min_p", 0.0, 1.0)
        _real(self, "repetition_penalty", 1 / MAX_PENALTY, MAX_PENALTY)
        _real(self, "frequency_penalty", -2.0, 2.0)
        _real(self, "presence_penalty", -2.0, 2.0)
        _set(self, "logit_bias", _checked_bias(self.logit_bias))
        _set(self, "bad_words", _checked_bad_words(self.bad_words))
        _integer(self, "min_new_tokens", 0, self.max_new_tokens, "max_new_tokens")
        _set(self, "stop_token_ids", _checked_ids("stop_token_ids", self.stop_token_ids))
        _set(self, "stop", _checked_stop(self.stop))
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos must be True or False, got {self.ignore_eos!r}")
        if self.seed is not None:
            _integer(self, "seed", 0, MAX_SEED, "2**64 - 1")
        if self.logprobs is not None:
            _integer(self, "logprobs", 0)
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise ValueError(
                "logits_processor must be a function of (prompt ids, generated ids, logits) or "
                f"None, got {self.logits_processor!r}"
            )

    @property
    def is_greedy(self) -> bool:
        """Whether the best token after processing is always taken: temperature 0, or top_k 1."""
        return self.temperature == 0.0 or self.top_k == 1

    def with_seed(self) -> SamplingParams:
        """The same parameters with a seed: the one they have, or a fresh one below 2**53.

        Call it once a request and report the seed; 2**53 keeps it exact in any JSON reader.
        """
        if self.seed is not None:
            return self
        return dataclasses.replace(self, seed=secrets.randbits(53))

    def stopping_ids(self, eos_ids: Sequence[int]) -> frozenset[int]:
        """The ids that end this request when generated, given the model's end-of-sequence ids."""
        return frozenset(self.stop_token_ids) | frozenset(() if self.ignore_eos else eos_ids)


class TextEncoder(Protocol):
    """The part of a transformers tokenizer that `bad_word_ids` needs."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The token ids of `text`."""


def bad_word_ids(words: Sequence[str], tokenizer: TextEncoder) -> tuple[tuple[int, ...], ...]:
    """The token sequences of `words`, at the start of a text and after a space, duplicates removed.

    A tokenizer may spell the same letters in other ways; only these spellings are forbidden.

    Raises:
        ValueError: A word is not a string, or empty, or has no tokens.
    """
    found: dict[tuple[int, ...], None] = {}
    if isinstance(words, str):
        raise ValueError(f"bad_words must be a sequence of strings, got the string {words!r}")
    for word in words:
        if not isinstance(word, str) or not word.strip():
            raise ValueError(f"bad_words must hold non-empty strings, got {word!r}")
        for spelling in (word, " " + word.lstrip()):
            ids = tuple(tokenizer.encode(spelling, add_special_tokens=False))
            if not ids:
                raise ValueError(f"bad_words: {spelling!r} has no tokens in this tokenizer")
            found[ids] = None
    return tuple(found)


def _set(params: SamplingParams, name: str, value: object) -> None:
    object.__setattr__(params, name, value)


def is_integer(value: object) -> bool:
    """Whether `value` is a whole number of any integer type; True and False are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _integer(
    params: SamplingParams, name: str, low: int, high: int | None = None, high_name: str = ""
) -> None:
    value = getattr(params, name)
    allowed = f"at least {low}" if high is None else f"from {low} to {high_name} ({high})"
    if not is_integer(value) or value < low or (high is not None and value > high):
        raise ValueError(f"{name} must be a whole number {allowed}, got {value!r}")
    _set(params, name, int(value))


def _is_finite(value: numbers.Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        # A whole number that no float reaches.
        return False


def _real(
    params: SamplingParams, name: str, low: float, high: float, *, open_low: bool = False
) -> None:
    value = getattr(params, name)
    bound = "above" if open_low else "at least"
    allowed = f"{bound} {low:g}" + ("" if high == math.inf else f" and at most {high:g}")
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if (
        not number
        or not _is_finite(value)
        or not low <= value <= high
        or (open_low and value == low)
    ):
        raise ValueError(f"{name} must be a finite number {allowed}, got {value!r}")
    _set(params, name, float(value))


def _checked_bias(bias: object) -> dict[int, float]:
    if not isinstance(bias, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {bias!r}")
    for token, value in bias.items():
        if not is_integer(token) or token < 0:
            raise ValueError(f"logit_bias: token ids are whole numbers >= 0, got {token!r}")
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            raise ValueError(f"logit_bias[{token}] must be a finite number, got {value!r}")
        if not _is_finite(value):
            raise ValueError(
                f"logit_bias[{token}] must be a finite number, got {value!r} "
                "(to forbid a token put it in bad_words)"
            )
        if not -MAX_BIAS <= float(value) <= MAX_BIAS:
            raise ValueError(
                f"logit_bias[{token}] must be from {-MAX_BIAS:g} to {MAX_BIAS:g}, got {value!r}"
            )
    return {int(token): float(value) for token, value in bias.items()}


def _checked_ids(name: str, ids: object) -> tuple[int, ...]:
    if isinstance(ids, str | bytes) or not isinstance(ids, Sequence):
        raise ValueError(f"{name} must be a tuple of token ids, got {ids!r}")
    for token in ids:
        if not is_integer(token) or token < 0:
            raise ValueError(f"{name}: token ids are whole numbers >= 0, got {token!r}")
    return tuple(int(token) for token in ids)


def _checked_bad_words(words: object) -> tuple[tuple[int, ...], ...]:
    if isinstance(words, str | bytes) or not isinstance(words, Sequence):
        raise ValueError(f"bad_words must be a tuple of token id tuples, got {words!r}")
    checked = []
    for word in words:
        if isinstance(word, str):
            raise ValueError(
                f"bad_words must hold token id tuples, got the string {word!r}: "
                "make them with bad_word_ids(words, tokenizer)"
            )
        ids = _checked_ids("bad_words", word)
        if not ids:
            raise ValueError("bad_words: a word must have at least one token id, got an empty one")
        checked.append(ids)
    return tuple(checked)


def _checked_stop(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):
        raise ValueError(f"stop must be a tuple of strings, got the string {stop!r}")
    if not isinstance(stop, Sequence):
        raise ValueError(f"stop must be a tuple of strings, got {stop!r}")
    for word in stop:
        if not isinstance(word, str) or not word:
            raise ValueError(f"stop must hold non-empty strings, got {word!r}")
        if "\ufffd" in word:
            raise ValueError(
                f"stop must not hold U+FFFD, which stands for bytes that are no text, got {word!r}"
            )
    return tuple(stop)
