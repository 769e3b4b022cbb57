"""The one function that picks a token from one row of logits, for plain and tree decoding alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_core import warp
from jetflow_core.logprobs import TopLogprobs, token_logprobs
from jetflow_core.noise import gumbel
from jetflow_core.sampling import SamplingParams


class NonFiniteLogitsError(ValueError):
    """A row of logits holds NaN or +inf, so no token of it can be trusted."""


class NoAllowedTokenError(ValueError):
    """Everything is forbidden: grammar, bad words and stop rules leave no token."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A token and what is reported about it.

    Attributes:
        token: The id that was picked.
        logprob: Its log-probability under the raw logits, if the request asked for logprobs.
        top_logprobs: The best tokens with theirs, if the request asked for logprobs.
    """

    token: int
    logprob: float | None = None
    top_logprobs: TopLogprobs | None = None


@dataclass(frozen=True, slots=True)
class _Law:
    """The tokens that may be drawn, ids ascending, and their log-weights; softmax is the law."""

    ids: Tensor
    weights: Tensor

    @classmethod
    def of(cls, ids: Tensor, weights: Tensor) -> _Law:
        """The law without the forbidden entries of `weights`."""
        kept = weights.isfinite().nonzero().flatten()
        return cls(ids[kept], weights[kept])


class TokenPicker:
    """Picks tokens of one request; a pure function of (row, history).

    The steps on a row, in this order, each skipped when it would change nothing:

    1. logits as float32 (float64 stays float64);
    2. the user's `logits_processor`, on the raw logits;
    3. repetition penalty (prompt and answer), frequency and presence penalties (answer only);
    4. `logit_bias`;
    5. `bad_words` (matched within the answer);
    6. stopping ids forbidden before `min_new_tokens`;
    7. greedy: the best logit, of equal ones the lowest id; otherwise
    8. temperature, `top_k`, `top_p`, `min_p`, each on the law the one before left;
    9. the largest of log-probability plus Gumbel noise, which draws exactly from that law.

    The noise is keyed by (seed, absolute position), never by how many rows were looked at, so
    the same seed gives the same tokens whether a row is reached by plain decoding or in a tree.
    Gumbel noise a token moves a draw only where two tokens nearly tie; inverting the cumulative
    law would let a rounding error in one logit move the draw anywhere above it.

    Args:
        params: The request's parameters.
        prompt: Token ids of the prompt.
        eos_ids: The model's end-of-sequence ids.
        vocab_size: Entries of a row of logits.

    Raises:
        ValueError: An id of `params` or `prompt` is not in the vocabulary, or more logprobs are
            asked for than it has entries.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        eos_ids: Sequence[int],
        vocab_size: int,
    ) -> None:
        self.params = params.with_seed()
        self.vocab_size = vocab_size
        self._prompt = tuple(prompt)
        self._stopping = sorted(params.stopping_ids(eos_ids))
        self._prompt_ids = torch.tensor(sorted(set(prompt)), dtype=torch.int64)
        _check_ids("logit_bias", params.logit_bias, vocab_size)
        _check_ids("bad_words", [t for word in params.bad_words for t in word], vocab_size)
        _check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
        _check_ids("prompt", prompt, vocab_size)
        _check_ids("eos_ids", eos_ids, vocab_size)
        if params.logprobs is not None and params.logprobs > vocab_size:
            raise ValueError(
                f"logprobs must be at most the vocabulary size {vocab_size}, got {params.logprobs}"
            )

    @property
    def seed(self) -> int:
        """The seed in use: the request's, or the one drawn for it. Report it to the user."""
        assert self.params.seed is not None
        return self.params.seed

    @property
    def plain_argmax(self) -> bool:
        """Whether `pick` is the argmax of the raw row for every history and reports nothing else.

        If so an engine may call `argmax_rows` on all rows at once and walk the result.
        """
        params = self.params
        changes_logits = (
            params.logits_processor is not None
            or self._has_penalty
            or params.logit_bias
            or params.bad_words
            or (params.min_new_tokens and self._stopping)
        )
        return params.is_greedy and not changes_logits and params.logprobs is None

    @property
    def _has_penalty(self) -> bool:
        params = self.params
        return (
            params.repetition_penalty != 1.0
            or params.frequency_penalty != 0.0
            or params.presence_penalty != 0.0
        )

    def pick(self, row: Tensor, generated: Sequence[int]) -> Pick:
        """The token that follows prompt and `generated`, given its row of raw logits.

        Args:
            row: Logits `[V]` of any float type, on any device; not changed.
            generated: The answer so far on this row's own path (root and ancestors included).

        Raises:
            ValueError: The row is not `[V]`.
            NonFiniteLogitsError: The row, or what the request's steps made of it, holds NaN or
                +inf.
            NoAllowedTokenError: No token is allowed.
        """
        raw = _working(row, self.vocab_size)
        processed = self._allowed(raw, generated)
        if self.params.is_greedy:
            token = _first_best(processed)
        else:
            token = self._draw(self._law(processed), len(self._prompt) + len(generated))
        if self.params.logprobs is None:
            return Pick(token)
        return Pick(token, *token_logprobs(raw, token, self.params.logprobs))

    def probabilities(self, row: Tensor, generated: Sequence[int]) -> Tensor:
        """The exact law `[V]`, float64, that `pick` draws from; arguments and errors are its.

        A greedy request has all its probability on one token.
        """
        processed = self._allowed(_working(row, self.vocab_size), generated)
        result = torch.zeros(self.vocab_size, dtype=torch.float64, device=row.device)
        if self.params.is_greedy:
            result[_first_best(processed)] = 1.0
            return result
        law = self._law(processed)
        result[law.ids] = law.weights.softmax(0)
        return result

    def _allowed(self, row: Tensor, generated: Sequence[int]) -> Tensor:
        """The row after steps 2 to 6, if it leaves any token."""
        processed = self._processed(row, generated)
        peak = float(processed.max())
        if peak == warp.FORBIDDEN:
            raise NoAllowedTokenError(self._dead_end(generated))
        # A finite row may still overflow, and an endless logit would count as a forbidden one.
        if not math.isfinite(peak):
            raise NonFiniteLogitsError(
                f"penalties and logit_bias take a logit past the range of {processed.dtype}"
            )
        return processed

    def _law(self, row: Tensor) -> _Law:
        """The row after step 8."""
        params = self.params
        if params.top_k:
            # Dividing by the temperature keeps the order, so the cut may come first and leave
            # the later steps a short row.
            row = warp.keep_best(row, params.top_k)
        law = _Law.of(torch.arange(row.shape[0], device=row.device), row)
        weights = warp.scaled(law.weights, params.temperature)
        weights = warp.keep_nucleus(weights, params.top_p)
        return _Law.of(law.ids, warp.keep_probable(weights, params.min_p))

    def _processed(self, row: Tensor, generated: Sequence[int]) -> Tensor:
        params = self.params
        if params.logits_processor is not None:
            row = self._user_processed(row, generated)
        if self._has_penalty:
            row = self._penalised(row, generated)
        if params.logit_bias:
            row = warp.add_bias(row, params.logit_bias)
        if params.bad_words:
            row = warp.forbid(row, warp.completed_words(params.bad_words, generated))
        if len(generated) < params.min_new_tokens:
            row = warp.forbid(row, self._stopping)
        return row

    def _user_processed(self, row: Tensor, generated: Sequence[int]) -> Tensor:
        assert self.params.logits_processor is not None
        result = self.params.logits_processor(self._prompt, tuple(generated), row.clone())
        if not isinstance(result, Tensor) or result.shape != row.shape:
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ValueError(
                f"logits_processor must return logits [{self.vocab_size}], got {shape}"
            )
        return _finite(result.to(row), "the result of logits_processor")

    def _penalised(self, row: Tensor, generated: Sequence[int]) -> Tensor:
        answer = torch.tensor(list(generated), dtype=torch.int64)
        seen = torch.cat((self._prompt_ids, answer)).unique()
        return warp.penalise(
            row,
            seen.to(row.device),
            answer.to(row.device),
            repetition=self.params.repetition_penalty,
            frequency=self.params.frequency_penalty,
            presence=self.params.presence_penalty,
        )

    def _draw(self, law: _Law, position: int) -> int:
        ids = law.ids.cpu().numpy()
        noisy = law.weights.cpu().numpy() + gumbel(self.seed, position, ids)
        return int(ids[int(noisy.argmax())])

    def _dead_end(self, generated: Sequence[int]) -> str:
        params = self.params
        steps = [
            name
            for name, active in (
                ("logits_processor", params.logits_processor is not None),
                ("bad_words", bool(params.bad_words)),
                ("min_new_tokens", len(generated) < params.min_new_tokens),
            )
            if active
        ]
        return (
            f"no token is allowed after {len(generated)} generated ones: "
            + (f"{', '.join(steps)} forbid all" if steps else "every logit of the target is -inf")
            + f" {self.vocab_size} entries of the vocabulary"
        )


def argmax_rows(logits: Tensor) -> list[int | None]:
    """The first index of the largest logit of each row `[N, V]`, with one transfer to the host.

    None stands for a row that has no best token: it holds NaN or +inf, or nothing but -inf. Only
    who needs that row has to mind; `TokenPicker.pick` says what is wrong with it.
    """
    peaks, ids = logits.max(dim=-1)
    values, tokens = torch.stack((peaks.double(), ids.double())).tolist()
    return [
        int(token) if math.isfinite(value) else None
        for value, token in zip(values, tokens, strict=True)
    ]


def _first_best(row: Tensor) -> int:
    return int(row.max(dim=-1).indices)


def _working(row: Tensor, vocab_size: int) -> Tensor:
    if row.shape != (vocab_size,):
        raise ValueError(f"a row of logits must be [{vocab_size}], got {tuple(row.shape)}")
    return _finite(row if row.dtype == torch.float64 else row.float(), "a row of logits")


def _finite(row: Tensor, what: str) -> Tensor:
    # max() hands NaN on, so one number tells of NaN and +inf; -inf is a legal "never".
    peak = float(row.max())
    if not peak < float("inf"):
        raise NonFiniteLogitsError(f"{what} has the maximum {peak}; NaN and +inf are not logits")
    return row


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise ValueError(f"{name}: token id {token} is not in 0 to {vocab_size - 1}")
