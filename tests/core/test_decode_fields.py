"""Every request option acts at every node on that node's own path: trees equal plain decoding."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.drafters.probe import always_wrong, oracle, random_tree
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target

VOCAB, DEPTH, COUNT = 128, 7, 32
PROMPT = (3, 14, 15, 92, 65, 35)
MAKERS = (oracle, always_wrong, random_tree)


def _plain(engine: Engine, **options: Any) -> Generation:
    params = SamplingParams(**{"max_new_tokens": COUNT, **options})
    return engine.generate(PROMPT, params, TreeOptions(budget=1))


@pytest.fixture(scope="module")
def endless(tiny_target: Target) -> tuple[int, ...]:
    """The greedy text of a target without any end."""
    return _plain(Engine(tiny_target, None)).tokens


@pytest.fixture(scope="module")
def engine(
    tiny_model: Callable[..., Any], tiny_tokenizer: Path, endless: tuple[int, ...]
) -> Engine:
    """With a tokenizer, and an end-of-sequence token that its greedy text comes to half-way."""
    end = next(i for i in range(COUNT // 2, COUNT) if endless[i] not in endless[:i])
    model = tiny_model("qwen3", eos_token_id=endless[end])
    return Engine(Target.from_model(model, tokenizer_source=str(tiny_tokenizer)), None)


@pytest.fixture(scope="module")
def ordinary(engine: Engine) -> Generation:
    return _plain(engine)


def _forbid_after_even(
    prompt: Sequence[int], generated: Sequence[int], logits: torch.Tensor
) -> torch.Tensor:
    """Depends on the whole path: bans half of the vocabulary by the parity of the history's sum."""
    logits[sum(generated) % 2 :: 2] = float("-inf")
    return logits


OPTIONS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.9, "seed": 5},
    "seed": {"temperature": 0.9, "seed": 6},
    "top_k": {"temperature": 1.5, "top_k": 4, "seed": 1},
    "top_p": {"temperature": 1.5, "top_p": 0.4, "seed": 2},
    "min_p": {"temperature": 2.0, "min_p": 0.3, "seed": 3},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "frequency_bonus": {"frequency_penalty": -2.0},
    "presence_penalty": {"presence_penalty": 2.0},
    "logit_bias": {"logit_bias": {5: 3.0, 9: -4.0}},
    "logits_processor": {"logits_processor": _forbid_after_even},
    "ignore_eos": {"ignore_eos": True},
    "max_new_tokens": {"max_new_tokens": 9},
    "logprobs": {"logprobs": 5},
    "everything": {
        "temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2,
        "frequency_penalty": 0.5, "presence_penalty": 0.3, "logit_bias": {1: 1.0}, "seed": 11,
        "logits_processor": _forbid_after_even, "min_new_tokens": 12, "ignore_eos": True,
        "logprobs": 2,
    },
}  # fmt: skip
FROM_THE_TEXT: dict[str, Callable[[Generation], dict[str, Any]]] = {
    "bad_words": lambda text: {"bad_words": (text.tokens[8:10],)},
    "min_new_tokens": lambda text: {"min_new_tokens": len(text.tokens) + 2},
    "stop_token_ids": lambda text: {"stop_token_ids": text.tokens[12:13]},
    "stop": lambda text: {"stop": (text.text[12:14],)},
}
"""Options that change something only if they name a part of the ordinary text."""


def test_no_field_is_forgotten() -> None:
    """A new field of the parameters needs a case here."""
    used = {name for options in OPTIONS.values() for name in options} | set(FROM_THE_TEXT)
    assert {field.name for field in fields(SamplingParams)} == used
    assert used <= {*OPTIONS, *FROM_THE_TEXT}, "a field has no case under its own name"


@pytest.mark.parametrize("name", [*OPTIONS, *FROM_THE_TEXT])
def test_trees_give_what_plain_decoding_gives(
    engine: Engine, ordinary: Generation, name: str
) -> None:
    options = OPTIONS[name] if name in OPTIONS else FROM_THE_TEXT[name](ordinary)
    expected = _plain(engine, **options)
    assert _told(expected) != _told(ordinary), "the option changed nothing, so it proves nothing"
    answers = {PROMPT: (*expected.tokens, *range(DEPTH))}
    params = SamplingParams(**{"max_new_tokens": COUNT, **options})
    for make in MAKERS:
        drafter = make(answers, VOCAB, depth=DEPTH)
        found = engine.generate_batch([PROMPT], params, TreeOptions(budget=24), drafter=drafter)
        assert _told(found[0]) == _told(expected)


def _told(answer: Generation) -> tuple[Any, ...]:
    """All that a user is told; logarithms to nine digits, since rows share their passes."""
    probabilities = [
        None
        if pick.logprob is None or pick.top_logprobs is None
        else [(pick.token, round(pick.logprob, 9))]
        + [(token, round(value, 9)) for token, value in pick.top_logprobs]
        for pick in answer.picks
    ]
    return answer.tokens, answer.text, answer.finish, probabilities
