"""Requests of other APIs as `SamplingParams`: every known field is honoured or refused by name."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from jetflow_core.sampling import SamplingParams, TextEncoder, bad_word_ids, is_integer


@dataclasses.dataclass(frozen=True, slots=True)
class FieldRule:
    """What becomes of one request field.

    Attributes:
        kind: `honoured`; `refused`; or `request`, for what says nothing about sampling and has to
            be taken out by whoever answers the request.
        note: The parameter that honours the field, or why it is refused or left to the caller.
        neutral: Values of a refused field that ask for nothing, and pass.
    """

    kind: Literal["honoured", "refused", "request"]
    note: str
    neutral: tuple[Any, ...] = ()


def from_mapping(values: Mapping[str, Any], tokenizer: TextEncoder | None = None) -> SamplingParams:
    """The parameters that a request's fields ask for; None stands for the default.

    Takes the names of `SamplingParams` and those of OpenAI's and vLLM's requests, see
    `OPENAI_FIELDS`. Beside the types of `SamplingParams` it takes what JSON offers: a single stop
    string, token ids as keys of `logit_bias` in quotes, `top_k` -1 for all, `logprobs` true with
    `top_logprobs`, and with a tokenizer `bad_words` as strings. Nothing is ever ignored.

    Raises:
        ValueError: An unknown field (the nearest known names are given), a refused one with the
            reason, one that is not about sampling, two fields that contradict each other, or a
            value out of range.
    """
    asked: dict[str, Any] = {}
    spelt: dict[str, str] = {}
    for name, value in _with_joined_logprobs(values).items():
        target = _target(name, value)
        if value is None or target is None:
            continue
        value = _converted(target, name, value, tokenizer)
        if target in asked and asked[target] != value:
            raise ValueError(
                f"{spelt[target]} = {asked[target]!r} and {name} = {value!r} contradict each other"
            )
        asked[target], spelt[target] = value, name
    return _made(asked, spelt)


def _made(asked: Mapping[str, Any], spelt: Mapping[str, str]) -> SamplingParams:
    """The parameters; what is wrong with them is told in the names that the request used."""
    least, most = asked.get("min_new_tokens", 0), SamplingParams().max_new_tokens
    if "max_new_tokens" not in asked and is_integer(least) and least > most:
        raise ValueError(
            f"{spelt['min_new_tokens']} = {least} needs a max_tokens of at least as many: "
            f"without one an answer ends after {most} tokens"
        )
    try:
        return SamplingParams(**asked)
    except ValueError as error:
        told = re.sub(r"\w+", lambda word: spelt.get(word[0], word[0]), str(error))
        raise ValueError(told) from error


def fields_table() -> str:
    """`OPENAI_FIELDS` as a Markdown table, one field a row."""
    rows = ["| field | answer | by what, or why not |", "|---|---|---|"]
    for name, rule in OPENAI_FIELDS.items():
        passes = f" (passes: {', '.join(f'`{v!r}`' for v in rule.neutral)})" if rule.neutral else ""
        note = f"`{rule.note}`" if rule.kind == "honoured" else rule.note
        rows.append(f"| `{name}` | {rule.kind} | {note}{passes} |")
    return "\n".join(rows) + "\n"


def _target(name: str, value: Any) -> str | None:
    """The parameter that `name` sets; None for a refused field whose value asks for nothing."""
    if name in _OWN:
        return name
    rule = OPENAI_FIELDS.get(name)
    if rule is None:
        known = dict.fromkeys((*_OWN, *OPENAI_FIELDS))
        near = difflib.get_close_matches(name, list(known))
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"unknown sampling field {name!r}{hint}")
    if rule.kind == "honoured":
        return rule.note
    if rule.kind == "request":
        raise ValueError(f"{name} is not about sampling: {rule.note}")
    if value is None or any(type(value) is type(v) and value == v for v in rule.neutral):
        return None
    raise ValueError(f"{name} = {value!r} is not supported: {rule.note}")


def _with_joined_logprobs(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with the chat spelling of `logprobs` (a flag and a count) as one count."""
    fields = dict(values)
    flag, top = fields.get("logprobs"), fields.pop("top_logprobs", None)
    if flag is True:
        fields["logprobs"] = 0 if top is None else top
    elif flag is False or flag is None:
        if top:
            raise ValueError(f"top_logprobs = {top!r} needs logprobs = true, got {flag!r}")
        fields["logprobs"] = None
    elif top is not None:
        raise ValueError(f"logprobs = {flag!r} and top_logprobs = {top!r} contradict each other")
    return fields


def _converted(target: str, name: str, value: Any, tokenizer: TextEncoder | None) -> Any:
    """`value` in the type that `SamplingParams` wants, where JSON spells it otherwise."""
    if target == "stop" and isinstance(value, str):
        return (value,)
    if target == "top_k" and type(value) is int and value == -1:
        return 0
    if target == "logit_bias" and isinstance(value, Mapping):
        return _joined_bias(name, value)
    if target == "bad_words" and isinstance(value, list | tuple):
        words = [word for word in value if isinstance(word, str)]
        if words and len(words) == len(value):
            if tokenizer is None:
                raise ValueError(f"{name} as strings needs a tokenizer, got {value!r} without one")
            return bad_word_ids(words, tokenizer)
    return value


def _joined_bias(name: str, biases: Mapping[Any, Any]) -> dict[Any, Any]:
    joined: dict[Any, Any] = {}
    for key, bias in biases.items():
        token = _token_key(key)
        if joined.setdefault(token, bias) != bias:
            raise ValueError(
                f"{name} spells token {token} in two ways that contradict each other: "
                f"{joined[token]!r} and {bias!r}"
            )
    return joined


def _token_key(key: Any) -> Any:
    if isinstance(key, str) and key.isascii() and key.isdigit():
        return int(key)
    return key


def _refused(reason: str, *neutral: Any) -> FieldRule:
    return FieldRule("refused", reason, neutral)


_GRAMMAR = "write a logits_processor for it; that is where grammars plug in"
_BEAMS = "one continuation is sampled; there is no beam search"
_TOOLS = "tool calls are made by the server from the finished text"
_PROMPT = "it changes the prompt, which is made before sampling begins"
_OUTPUT = "it changes the shape of the answer, not its tokens"
_SCHEDULE = "it tells the server when or under which name to run the request"

_HONOURED = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "bad_words": "bad_words",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "seed": "seed",
    "logprobs": "logprobs",
    "top_logprobs": "logprobs",
}

_REFUSED = {
    "n": _refused("ask once for each answer, with different seeds", 1),
    "best_of": _refused("ask once for each answer, with different seeds", 1),
    "echo": _refused("the answer does not repeat the prompt", False),
    "suffix": _refused("nothing is inserted before a suffix", ""),
    "use_beam_search": _refused(_BEAMS, False),
    "length_penalty": _refused(_BEAMS, 1, 1.0),
    "response_format": _refused(_GRAMMAR, {"type": "text"}),
    "structured_outputs": _refused(_GRAMMAR),
    "guided_decoding": _refused(_GRAMMAR),
    "guided_json": _refused(_GRAMMAR),
    "guided_regex": _refused(_GRAMMAR),
    "guided_choice": _refused(_GRAMMAR),
    "guided_grammar": _refused(_GRAMMAR),
    "guided_decoding_backend": _refused(_GRAMMAR),
    "guided_whitespace_pattern": _refused(_GRAMMAR),
    "allowed_token_ids": _refused("write a logits_processor that forbids all others"),
    "logits_processors": _refused("there is one: logits_processor, a Python function"),
    "vllm_xargs": _refused("no sampling extension reads it"),
    "extra_args": _refused("no sampling extension reads it"),
    "prompt_logprobs": _refused("only the answer's tokens have logprobs"),
    "logprob_token_ids": _refused("logprobs reports the best tokens and the chosen one"),
    "include_stop_str_in_output": _refused("the text is cut before the stop string", False),
    "skip_special_tokens": _refused("special tokens have no text", True),
    "spaces_between_special_tokens": _refused("special tokens have no text", True, False),
    "detokenize": _refused("the answer has both tokens and text", True),
    "truncate_prompt_tokens": _refused("a prompt too long is an error, never cut"),
    "truncation_side": _refused("a prompt too long is an error, never cut"),
    "repetition_detection": _refused("an answer is not ended for repeating itself"),
    "thinking_token_budget": _refused("tokens are not counted by section", -1),
    "reasoning_effort": _refused("the chat template of the model has to offer it"),
    "verbosity": _refused("the chat template of the model has to offer it"),
    "watermarking": _refused("tokens are drawn from the target's own law", False),
    "prediction": _refused("drafts come from the draft head"),
    "tools": _refused(_TOOLS, []),
    "tool_choice": _refused(_TOOLS, "none"),
    "parallel_tool_calls": _refused(_TOOLS, True, False),
    "functions": _refused(_TOOLS, []),
    "function_call": _refused(_TOOLS, "none"),
    "modalities": _refused("the answer is text", ["text"]),
    "audio": _refused("the answer is text"),
    "web_search_options": _refused("nothing is searched for"),
    "max_length": _refused("it counts the prompt too; use max_new_tokens"),
    "min_length": _refused("it counts the prompt too; use min_new_tokens"),
    "do_sample": _refused("temperature 0 is greedy, above 0 it samples"),
    "num_beams": _refused(_BEAMS, 1),
    "early_stopping": _refused(_BEAMS, False),
    "num_return_sequences": _refused("ask once for each answer, with different seeds", 1),
    "no_repeat_ngram_size": _refused("write a logits_processor for it", 0),
    "typical_p": _refused("write a logits_processor for it", 1, 1.0),
}

_REQUEST = {
    "model": "it names the target",
    "prompt": _PROMPT,
    "messages": _PROMPT,
    "prompt_embeds": _PROMPT,
    "documents": _PROMPT,
    "add_special_tokens": _PROMPT,
    "add_generation_prompt": _PROMPT,
    "continue_final_message": _PROMPT,
    "chat_template": _PROMPT,
    "chat_template_kwargs": _PROMPT,
    "media_io_kwargs": _PROMPT,
    "mm_processor_kwargs": _PROMPT,
    "stream": _OUTPUT,
    "stream_options": _OUTPUT,
    "stream_interval": _OUTPUT,
    "output_kind": _OUTPUT,
    "flat_logprobs": _OUTPUT,
    "include_reasoning": _OUTPUT,
    "return_token_ids": _OUTPUT,
    "return_tokens_as_token_ids": _OUTPUT,
    "user": _SCHEDULE,
    "metadata": _SCHEDULE,
    "store": _SCHEDULE,
    "service_tier": _SCHEDULE,
    "safety_identifier": _SCHEDULE,
    "prompt_cache_key": _SCHEDULE,
    "request_id": _SCHEDULE,
    "session_id": _SCHEDULE,
    "priority": _SCHEDULE,
    "cache_salt": _SCHEDULE,
    "kv_transfer_params": _SCHEDULE,
    "ec_transfer_params": _SCHEDULE,
}

OPENAI_FIELDS: Mapping[str, FieldRule] = MappingProxyType(
    {name: FieldRule("honoured", parameter) for name, parameter in _HONOURED.items()}
    | _REFUSED
    | {name: FieldRule("request", note) for name, note in _REQUEST.items()}
)
"""Every sampling field of OpenAI's, vLLM's and transformers' requests, and what becomes of it."""

_OWN = tuple(field.name for field in dataclasses.fields(SamplingParams))
