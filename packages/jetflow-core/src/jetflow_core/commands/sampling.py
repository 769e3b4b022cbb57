"""The options of a request: every sampling parameter under its own name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from jetflow_core.commands.numbers import OptionError, Real, parse_real, parse_whole, whole

if TYPE_CHECKING:
    from jetflow_core.sampling import SamplingParams

_GROUP = Group("Sampling", sort_key=3)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingOptions:
    """What a request asks of the sampler; the defaults are greedy decoding."""

    max_new_tokens: Annotated[int, whole(), Parameter(help="Most tokens to write.")] = 128
    min_new_tokens: Annotated[int, whole(), Parameter(help="No stop before so many tokens.")] = 0
    temperature: Annotated[Real, Parameter(help="0 is greedy.")] = 0.0
    top_k: Annotated[int, whole(), Parameter(help="Keep the k best tokens; 0 keeps all.")] = 0
    top_p: Annotated[
        Real, Parameter(help="Keep the fewest tokens whose probability reaches p.")
    ] = 1.0
    min_p: Annotated[
        Real, Parameter(help="Keep tokens at least so many times as probable as the best.")
    ] = 0.0
    repetition_penalty: Annotated[
        Real, Parameter(help="Above 1: tokens of the prompt and the answer become less likely.")
    ] = 1.0
    frequency_penalty: Annotated[
        Real, Parameter(help="Subtracted for each time a token is in the answer, -2 to 2.")
    ] = 0.0
    presence_penalty: Annotated[
        Real, Parameter(help="Subtracted once a token is in the answer, -2 to 2.")
    ] = 0.0
    logit_bias: Annotated[
        tuple[str, ...],
        Parameter(
            help="TOKEN_ID=NUMBER, added to that token's logit; may be repeated.",
            show_default=False,
        ),
    ] = ()
    bad_word: Annotated[
        tuple[str, ...],
        Parameter(help="A word that must not appear; may be repeated.", show_default=False),
    ] = ()
    stop: Annotated[
        tuple[str, ...],
        Parameter(
            help="A string that ends the answer and is cut off; may be repeated.",
            show_default=False,
        ),
    ] = ()
    stop_token_id: Annotated[
        tuple[int, ...],
        whole(),
        Parameter(help="A token id that ends the answer; may be repeated.", show_default=False),
    ] = ()
    ignore_eos: Annotated[bool, Parameter(help="Write on after the end-of-sequence token.")] = False
    seed: Annotated[
        int | None, whole(), Parameter(help="Key of the noise; left out: drawn, and reported.")
    ] = None
    logprobs: Annotated[
        int | None,
        whole(),
        Parameter(help="Report each token's log-probability and so many alternatives."),
    ] = None

    def params(self) -> SamplingParams:
        """The same as the engine takes it, with a seed, but without the bad words.

        Raises:
            ValueError: a value is out of range, named.
        """
        from jetflow_core.sampling import SamplingParams

        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            min_new_tokens=self.min_new_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=_biases(self.logit_bias),
            stop=self.stop,
            stop_token_ids=self.stop_token_id,
            ignore_eos=self.ignore_eos,
            seed=self.seed,
            logprobs=self.logprobs,
        ).with_seed()

    def with_bad_words(self, params: SamplingParams, tokenizer: Any) -> SamplingParams:
        """``params`` with the bad words as ``tokenizer`` spells them.

        Raises:
            ValueError: a word is empty or has no tokens.
        """
        from jetflow_core.sampling import bad_word_ids

        return replace(params, bad_words=bad_word_ids(self.bad_word, tokenizer))


def _biases(texts: Sequence[str]) -> dict[int, float]:
    found: dict[int, float] = {}
    for text in texts:
        token, value = _bias(text)
        if token in found:
            raise ValueError(f"logit-bias names token {token} twice")
        found[token] = value
    return found


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    try:
        return parse_whole(token, "token id"), parse_real(value, "number")
    except (OptionError, ValueError):
        shown = text if len(text) <= 40 else f"{text[:37]}..."
        raise ValueError(f"logit-bias {shown!r} is not of the form TOKEN_ID=NUMBER") from None
