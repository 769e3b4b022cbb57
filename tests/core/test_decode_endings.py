"""Where a request ends inside an accepted run: end-of-sequence ids, stop strings, the limit.

The tiny model never means to stop, so a token or a string that its plain text holds is declared
to be the end. Tokens with end-of-sequence ids come from transformers' own greedy search.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.drafters.probe import always_wrong, oracle, random_tree
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from jetflow_tree import AcceptanceStats

VOCAB, DEPTH, COUNT, STEP = 128, 15, 40, 7
MAKERS = (oracle, always_wrong, random_tree)
PROMPTS = ((3, 14, 15, 92, 65, 35), (9, 8, 7), (111, 5, 77, 20))
Greedy = Callable[..., tuple[int, ...]]


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[..., Any], tiny_tokenizer: Path) -> Engine:
    return Engine(_target(tiny_model, tiny_tokenizer), None)


def _target(tiny_model: Callable[..., Any], tokenizer: Path, **config: Any) -> Target:
    return Target.from_model(tiny_model("qwen3", **config), tokenizer_source=str(tokenizer))


@pytest.fixture(scope="module")
def ordinary(engine: Engine) -> dict[tuple[int, ...], Generation]:
    """Plain text without any end but the limit."""
    params = SamplingParams(max_new_tokens=COUNT)
    return {p: engine.generate(p, params, TreeOptions(budget=1)) for p in PROMPTS}


def _with_trees(
    engine: Engine, prompt: tuple[int, ...], params: SamplingParams, answer: Sequence[int]
) -> list[Generation]:
    """With each drafter; after its end the answer goes on, so that drafts reach over it."""
    answers = {prompt: (*answer, *range(DEPTH))}
    return [
        engine.generate_batch(
            [prompt], params, TreeOptions(budget=64), drafter=make(answers, VOCAB, depth=DEPTH)
        )[0]
        for make in MAKERS
    ]


def _first_from(tokens: Sequence[int], start: int) -> int:
    """The first place from ``start`` on whose token did not come before."""
    return next(i for i in range(start, len(tokens)) if tokens[i] not in tokens[:i])


@pytest.mark.parametrize(
    "rules", [{}, {"min_new_tokens": 10}, {"ignore_eos": True}], ids=["eos", "min", "ignored"]
)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_models_own_end_is_found_where_transformers_finds_it(
    tiny_model: Callable[..., Any], tiny_tokenizer: Path, greedy: Greedy,
    ordinary: dict[tuple[int, ...], Generation], prompt: tuple[int, ...], rules: dict[str, Any],
) -> None:  # fmt: skip
    text = ordinary[prompt].tokens
    place = _first_from(text, 3)
    assert place < min(DEPTH, 10), "the end must fall inside the first accepted run"
    eos = text[place]
    minimum = rules.get("min_new_tokens", 0)
    options = {} if rules.get("ignore_eos") else {"eos_token_id": eos, "min_new_tokens": minimum}
    expected = greedy(tiny_model("qwen3"), prompt, COUNT, **options)
    ended = bool(options) and expected[-1] == eos
    if not rules:
        assert expected == text[: place + 1]
    target = _target(tiny_model, tiny_tokenizer, eos_token_id=eos)
    shown = target.tokenizer.decode(expected[:-1] if ended else expected)
    params = SamplingParams(max_new_tokens=COUNT, **rules)
    engine = Engine(target, None)
    plain = engine.generate(prompt, params, TreeOptions(budget=1))
    for found in (plain, *_with_trees(engine, prompt, params, (*expected, *text[place + 1 :]))):
        assert found.tokens == expected
        assert found.finish == ("stop" if ended else "length")
        assert found.text == shown
        assert _counted(found) == len(expected)


def _counted(found: Generation) -> int:
    """Emitted tokens by the statistics' own count: accepted ones and corrections."""
    stats = AcceptanceStats()
    for each in found.rounds:
        stats.add(each.tree, each.accepted)
    assert stats.rounds == len(found.rounds)
    assert stats.tokens == sum(tally.kept for tally in stats.by_depth) + stats.rounds
    return stats.tokens


@pytest.mark.parametrize("minimum", [0, 16])
@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_stop_string_ends_tree_and_plain_text_at_one_place(
    engine: Engine, ordinary: dict[tuple[int, ...], Generation], prompt: tuple[int, ...],
    minimum: int,
) -> None:  # fmt: skip
    """The string lies in the middle of the plain text, across the border of two tokens."""
    whole = ordinary[prompt].text
    decode = engine.target.tokenizer.decode
    before = len(decode(ordinary[prompt].tokens[: max(STEP, minimum + 1)]))
    stop = whole[before - 1 : before + 1]
    assert len(stop) == 2
    params = SamplingParams(max_new_tokens=COUNT, stop=(stop,), min_new_tokens=minimum)
    plain = engine.generate(prompt, params, TreeOptions(budget=1))
    count = len(plain.tokens)
    assert minimum <= count < COUNT
    assert plain.finish == "stop"
    assert plain.tokens == ordinary[prompt].tokens[:count]
    assert stop not in decode(plain.tokens[:-1])[len(decode(plain.tokens[:minimum])) :]
    assert plain.text == decode(plain.tokens)[: decode(plain.tokens).rindex(stop)]
    for found in _with_trees(engine, prompt, params, ordinary[prompt].tokens):
        assert (found.tokens, found.text, found.finish) == (plain.tokens, plain.text, "stop")
        assert _counted(found) == count


def _stops(engine: Engine, answer: Generation, place: int) -> list[dict[str, Any]]:
    """Rules that end the answer with its token number ``place``: an id, and a string."""
    decode = engine.target.tokenizer.decode
    text = decode(answer.tokens[: place + 1])
    tail = next(text[-n:] for n in range(1, len(text)) if text.find(text[-n:]) == len(text) - n)
    return [{"stop_token_ids": (answer.tokens[place],)}, {"stop": (tail,)}]


@pytest.mark.parametrize("kind", [0, 1], ids=["stop token", "stop string"])
def test_a_stop_on_the_last_allowed_token_is_a_stop(
    engine: Engine, ordinary: dict[tuple[int, ...], Generation], kind: int
) -> None:
    answer = ordinary[PROMPTS[0]]
    place = _first_from(answer.tokens, 4)
    rule = _stops(engine, answer, place)[kind]
    for limit, finish in ((place + 1, "stop"), (place, "length")):
        params = SamplingParams(max_new_tokens=limit, **rule)
        plain = engine.generate(PROMPTS[0], params, TreeOptions(budget=1))
        for found in (plain, *_with_trees(engine, PROMPTS[0], params, answer.tokens)):
            assert found.tokens == answer.tokens[:limit]
            assert found.finish == finish


@pytest.mark.parametrize("kind", [0, 1], ids=["stop token", "stop string"])
def test_a_stop_on_the_last_token_of_the_context_is_a_stop(
    tiny_model: Callable[..., Any], tiny_tokenizer: Path,
    ordinary: dict[tuple[int, ...], Generation], kind: int,
) -> None:  # fmt: skip
    """Here the loop's own limit is below the request's, so the stop rule knows nothing of it."""
    answer = ordinary[PROMPTS[0]]
    place = _first_from(answer.tokens, 4)
    for short, finish in ((0, "stop"), (1, "length")):
        context = len(PROMPTS[0]) + place + 1 - short
        target = _target(tiny_model, tiny_tokenizer, max_position_embeddings=context)
        engine = Engine(target, None)
        params = SamplingParams(max_new_tokens=COUNT, **_stops(engine, answer, place)[kind])
        plain = engine.generate(PROMPTS[0], params, TreeOptions(budget=1))
        for found in (plain, *_with_trees(engine, PROMPTS[0], params, answer.tokens)):
            assert found.tokens == answer.tokens[: context - len(PROMPTS[0])]
            assert found.finish == finish
