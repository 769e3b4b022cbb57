"""Where a request ends: stop tokens and strings in the middle of a round, limits, the context."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jetflow_core.decode import ContextTooLong
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.rounds import Finished, RoundRequest, RoundRunner, TorchRoundOps
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import stack_of_model
from jetflow_core.target import Target

VOCAB, DEPTH, COUNT = 128, 5, 16
PROMPTS = [(5, 6, 7), (8, 9), tuple(range(30, 47))]
Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]
SLOW = pytest.mark.slow
KINDS = ("first", pytest.param("hidden", marks=SLOW))


def _plain(engine: Engine, prompts: Sequence[Sequence[int]], params: Any) -> list[Generation]:
    return engine.generate_batch(prompts, params, TreeOptions(budget=1))


@pytest.fixture(scope="module")
def ordinary(plain_engine: Engine) -> list[Generation]:
    return _plain(plain_engine, PROMPTS, SamplingParams(max_new_tokens=COUNT))


@pytest.fixture(scope="module")
def texts(ordinary: list[Generation]) -> list[tuple[int, ...]]:
    return [(*each.prompt, *each.tokens) for each in ordinary]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", [9, *(pytest.param(n, marks=SLOW) for n in (0, COUNT - 1))])
def test_a_stop_token_ends_a_request_wherever_it_stands_in_a_round(
    runner: Runner, answer: Answer, scripted: Any, plain_engine: Engine,
    ordinary: list[Generation], texts: list[tuple[int, ...]], kind: str, place: int,
) -> None:  # fmt: skip
    """The token of one request stops all of them; one request has many others beside it."""
    stop = ordinary[0].tokens[place]
    many = tuple(t for t in range(VOCAB) if t not in {*ordinary[0].tokens, *ordinary[1].tokens})
    assert len(many) > 16
    rules = [
        SamplingParams(max_new_tokens=COUNT, stop_token_ids=(stop,)),
        SamplingParams(max_new_tokens=COUNT, stop_token_ids=(*many, stop)),
        SamplingParams(max_new_tokens=COUNT, stop_token_ids=(stop,), ignore_eos=True),
    ]
    prompts = [PROMPTS[0], PROMPTS[0], PROMPTS[2]]
    wanted = _plain(plain_engine, prompts, rules)
    assert [each.finish for each in wanted[:2]] == ["stop", "stop"]
    made = runner(scripted(texts, kind))
    for found, other in zip(answer(made, prompts, rules), wanted, strict=True):
        assert tuple(found.tokens) == other.tokens
        assert found.finish == other.finish


def test_an_end_of_sequence_token_ends_and_can_be_ignored(
    runner: Runner, answer: Answer, scripted: Any, ordinary: list[Generation],
    texts: list[tuple[int, ...]],
) -> None:  # fmt: skip
    eos = ordinary[0].tokens[8]
    rules = [SamplingParams(max_new_tokens=COUNT, ignore_eos=ignored) for ignored in (False, True)]
    stopped, whole = answer(runner(scripted(texts, "first")), [PROMPTS[0]] * 2, rules, eos=(eos,))
    first = ordinary[0].tokens.index(eos)
    assert tuple(stopped.tokens) == ordinary[0].tokens[: first + 1]
    assert (stopped.finish, whole.finish) == ("stop", "length")
    assert tuple(whole.tokens) == ordinary[0].tokens


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_string_is_seen_by_the_host_and_nothing_follows_it(
    runner: Runner, scripted: Any, tiny_model: Callable[..., Any], tiny_tokenizer: Any,
    ordinary: list[Generation], texts: list[tuple[int, ...]], kind: str,
) -> None:  # fmt: skip
    source = str(tiny_tokenizer)
    target = Target.from_model(tiny_model("qwen3"), tokenizer_source=source)
    decode = target.tokenizer.decode
    before = len(decode(ordinary[0].tokens[:8]))
    stop = decode(ordinary[0].tokens)[before - 1 : before + 1]
    rules = SamplingParams(max_new_tokens=COUNT, stop=(stop,))
    wanted = _plain(Engine(target, None), PROMPTS, rules)
    assert wanted[0].finish == "stop"
    assert 1 < len(wanted[0].tokens) < COUNT
    made = runner(scripted(texts, kind), slots=2)
    requests = [
        RoundRequest.of(p, rules, eos_ids=(), vocab_size=VOCAB, tokenizer=target.tokenizer)
        for p in PROMPTS
    ]
    steps = list(made.run(requests))
    for index, each in enumerate(wanted):
        own = [step for step in steps if step.request == index]
        assert [token for step in own for token in step.tokens] == list(each.tokens)
        assert "".join(step.text for step in own) == each.text
        assert [step.finish for step in own] == [None] * (len(own) - 1) + [each.finish]
    made.tables.check()
    assert made.tables.num_free == made.pages


@pytest.mark.parametrize(
    ("kind", "shortest"), [("first", 22), pytest.param("hidden", 16, marks=pytest.mark.slow)]
)
def test_the_end_of_the_context_is_an_ordinary_end(
    runner: Runner, answer: Answer, scripted: Any, tiny_model: Callable[..., Any], kind: str,
    shortest: int, head_for_tiny_target: Callable[..., Any], head_round: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """No position at or past it is ever computed, by the target or by a head."""
    context = 24
    model = tiny_model("qwen3", max_position_embeddings=context)
    engine = Engine(Target.from_model(model), None)
    stack = stack_of_model(tiny_model("qwen3", max_position_embeddings=context), taps=(0, 1, 3))
    prompts = [tuple((7 * i + n) % VOCAB for i in range(n)) for n in range(shortest, 24)]
    params = SamplingParams(max_new_tokens=200)
    wanted = _plain(engine, prompts, params)
    texts = [(*each.prompt, *each.tokens) for each in wanted]
    assert {len(text) for text in texts} == {context}
    of_target = _watch(monkeypatch, stack, "forward", lambda rows: rows.positions)
    of_head = _watch(monkeypatch, TorchRoundOps, "norm_rope_kv_write", lambda _, __, at: at)
    loaded = head_for_tiny_target(max_position_embeddings=256)
    for drafter in (scripted(texts, kind, depth=9), head_round(loaded, stack)):
        made = runner(drafter, stack=stack, slots=6, budget=12)
        found = answer(made, prompts, params)
        assert [tuple(each.tokens) for each in found] == [each.tokens for each in wanted]
        assert {each.finish for each in found} == {"length"}
    assert max(of_target) == max(of_head) == context - 2, "the last token is never run"
    with pytest.raises(ContextTooLong, match=r"24 tokens.*at most 23"):
        answer(made, [[1] * context], params)


def _watch(
    monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, of: Callable[..., torch.Tensor]
) -> list[int]:
    """The greatest position of each call."""
    seen: list[int] = []
    base, count = getattr(holder, name), of.__code__.co_argcount

    def watched(*args: Any, **more: Any) -> Any:
        seen.append(int(of(*args[:count]).max()))
        return base(*args, **more)

    monkeypatch.setattr(holder, name, watched)
    return seen
