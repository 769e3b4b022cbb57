"""Rounds on the device give the target's own text: that of the other engine, request by request."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.rounds import Finished, RoundRequest, RoundRunner
from jetflow_core.sampling import SamplingParams

VOCAB, DEPTH, COUNT = 128, 5, 14
SLOW = pytest.mark.slow
ALL = ("hidden", "first", "wrong")
KINDS = ("hidden", pytest.param("first", marks=SLOW), pytest.param("wrong", marks=SLOW))
Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]


def _prompts(count: int, seed: int = 0, longest: int = 20) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator).tolist()
    return [tuple(torch.randint(0, VOCAB, (n,), generator=generator).tolist()) for n in lengths]


PROMPTS = _prompts(4)


def _plain(
    engine: Engine, prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams],
) -> list[Generation]:  # fmt: skip
    return engine.generate_batch(prompts, params, TreeOptions(budget=1), num_slots=4)


@pytest.fixture(scope="module")
def ordinary(plain_engine: Engine) -> list[Generation]:
    return _plain(plain_engine, PROMPTS, SamplingParams(max_new_tokens=COUNT))


@pytest.fixture(scope="module")
def texts(ordinary: list[Generation]) -> list[tuple[int, ...]]:
    return [(*each.prompt, *each.tokens) for each in ordinary]


def test_the_oracle_is_transformers(
    ordinary: list[Generation], tiny_model: Callable[..., Any],
    greedy: Callable[..., tuple[int, ...]],
) -> None:  # fmt: skip
    model = tiny_model("qwen3")
    assert [each.tokens for each in ordinary] == [greedy(model, p, COUNT) for p in PROMPTS]


@pytest.mark.parametrize("budget", [16, *(pytest.param(n, marks=SLOW) for n in (1, 2, 70))])
@pytest.mark.parametrize("kind", KINDS)
def test_any_drafter_and_budget_gives_the_targets_own_text(
    runner: Runner, answer: Answer, scripted: Any, ordinary: list[Generation],
    texts: list[tuple[int, ...]], kind: str, budget: int,
) -> None:  # fmt: skip
    found = answer(
        runner(scripted(texts, kind), budget=budget), PROMPTS, SamplingParams(max_new_tokens=COUNT)
    )
    for each, wanted in zip(found, ordinary, strict=True):
        assert tuple(each.tokens) == wanted.tokens
        assert each.finish == "length"
        assert each.drafts_refused == 0
        if kind == "first" and budget > DEPTH:
            assert each.rounds == -(-COUNT // (DEPTH + 1))
        elif kind == "wrong" or budget == 1:
            assert each.rounds == COUNT
        elif budget > 2:
            assert COUNT / DEPTH < each.rounds < COUNT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("slots", "pages"),
    [(6, 20), pytest.param(16, 400, marks=SLOW), pytest.param(3, 400, marks=SLOW)],
)
def test_sixteen_requests_that_come_go_and_are_preempted(
    runner: Runner, answer: Answer, scripted: Any, unequal: Any, plain_engine: Engine,
    kind: str, slots: int, pages: int,
) -> None:  # fmt: skip
    """With 20 pages of 4 rows six requests of up to 32 rows do not fit for long."""
    prompts = _prompts(16, seed=1, longest=6)
    params = [SamplingParams(max_new_tokens=4 + 2 * (i % 4), seed=i) for i in range(16)]
    wanted = _plain(plain_engine, prompts, params)
    drafter = scripted([(*each.prompt, *each.tokens) for each in wanted], kind)
    made = runner(drafter, slots=slots, pages=pages, budget=unequal())
    found = answer(made, prompts, params)
    for each, other in zip(found, wanted, strict=True):
        assert tuple(each.tokens) == other.tokens
        assert (each.finish, each.seed) == (other.finish, other.seed)
    preempted = sum(each.preemptions for each in found)
    # With full acceptance every request is done before pages are short.
    assert (preempted > 0) == (pages == 20 and kind != "first")
    assert len(drafter.begun) == 16 + preempted
    if preempted:
        again = drafter.begun[16:] and [t for t in drafter.begun if t not in prompts]
        assert again, "somebody came back with a part of its answer"


@pytest.mark.parametrize(
    ("budget", "pages"),
    [(16, 24), pytest.param(16, 400, marks=SLOW), pytest.param(1, 14, marks=SLOW)],
)
def test_a_seed_gives_the_tokens_that_it_gives_everywhere(
    runner: Runner, answer: Answer, scripted: Any, plain_engine: Engine, budget: int, pages: int
) -> None:
    """Greedy, hot and cold requests side by side, one of them preempted."""
    params = [
        SamplingParams(max_new_tokens=12, temperature=heat, seed=seed, top_k=cut)
        for heat, seed, cut in ((0.8, 1, 0), (0.0, 2, 7), (1.3, 2**64 - 1, 0), (0.5, 2**63, 1))
    ]
    wanted = _plain(plain_engine, PROMPTS, params)
    texts = [(*each.prompt, *each.tokens) for each in wanted]
    made = runner(scripted(texts, "hidden"), budget=budget, pages=pages)
    found = answer(made, PROMPTS, params)
    assert [tuple(each.tokens) for each in found] == [each.tokens for each in wanted]
    assert any(each.preemptions for each in found) == (pages < 400)
    assert budget == 1 or sum(each.rounds for each in found) < 3 * 12


@pytest.mark.parametrize("kind", ["mixed", *(pytest.param(kind, marks=SLOW) for kind in ALL)])
def test_each_request_is_as_if_alone(
    runner: Runner, answer: Answer, scripted: Any, texts: list[tuple[int, ...]], kind: str
) -> None:
    """Tokens and rounds: a neighbour's rejected rows change nothing that comes after."""
    params = [SamplingParams(max_new_tokens=3 + 3 * i) for i in range(len(PROMPTS))]
    together = answer(runner(scripted(texts, kind), slots=3), PROMPTS, params)
    for prompt, rules, found in zip(PROMPTS, params, together, strict=True):
        alone = answer(runner(scripted(texts, kind), slots=1), [prompt], rules)[0]
        assert (found.tokens, found.rounds) == (alone.tokens, alone.rounds)
        assert len(found.tokens) == rules.max_new_tokens


def test_a_long_prompt_is_read_in_chunks_while_others_decode(
    runner: Runner, answer: Answer, scripted: Any, plain_engine: Engine
) -> None:
    prompts = [(5, 6), tuple(i % VOCAB for i in range(41))]
    params = SamplingParams(max_new_tokens=12)
    wanted = _plain(plain_engine, prompts, params)
    made = runner(
        scripted([(*each.prompt, *each.tokens) for each in wanted], "wrong"), prefill_rows=8
    )
    steps = list(made.run([
        RoundRequest.of(prompt, params, eos_ids=(), vocab_size=VOCAB) for prompt in prompts
    ]))  # fmt: skip
    for index, each in enumerate(wanted):
        own = [token for step in steps if step.request == index for token in step.tokens]
        assert tuple(own) == each.tokens
    runs = made.programs.runs
    chunks = [
        key[1].rows for key, times in runs.items() for _ in range(times) if key[0] == "prompt"
    ]
    assert sorted(chunks) == [8, 8, 8, 8, 9]
    who = [step.request for step in steps]
    assert who.index(1) == 5, "the short one decodes alone until the long prompt is in"
    alone = [times for key, times in runs.items() if getattr(key[0], "requests", 0) == 1]
    assert sum(alone) > 4, "and the long one alone, in the first slot, after the short one's end"


@pytest.mark.parametrize("kind", ["first", pytest.param("wrong", marks=SLOW)])
@pytest.mark.parametrize("count", [0, 1, 2, DEPTH, DEPTH + 1, DEPTH + 2])
def test_exactly_as_many_tokens_as_asked_for(
    runner: Runner, answer: Answer, scripted: Any, ordinary: list[Generation],
    texts: list[tuple[int, ...]], kind: str, count: int,
) -> None:  # fmt: skip
    made = runner(scripted(texts, kind))
    found = answer(made, PROMPTS[:2], SamplingParams(max_new_tokens=count))
    for each, wanted in zip(found, ordinary, strict=False):
        assert tuple(each.tokens) == wanted.tokens[:count]
        assert each.finish == "length"
    assert bool(made.programs.runs) == (count > 0)
