"""Biases, bans and cuts on the device: the picks, and whole runs, are those of the other engine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.engine import Engine
from jetflow_core.picker import TokenPicker
from jetflow_core.rounds import Finished, RoundRequest, RoundRunner, TorchRoundOps
from jetflow_core.rounds.laws import BIASES, Laws, Picks
from jetflow_core.rounds.requests import picks_of
from jetflow_core.rounds.state import RoundState
from jetflow_core.sampling import SamplingParams

CPU, VOCAB = torch.device("cpu"), 128
SMALL = 20
Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]

_RULES = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    top_k=st.sampled_from([0, 1, 3, SMALL, 50]),
    top_p=st.sampled_from([1.0, 0.01, 0.5, 0.9]),
    min_p=st.sampled_from([0.0, 0.2, 1.0]),
    logit_bias=st.dictionaries(
        st.integers(0, SMALL - 1), st.sampled_from([-1e30, -2.0, 0.5, 7.0]), max_size=4
    ),
    min_new_tokens=st.integers(0, 4),
    stop_token_ids=st.lists(st.integers(0, SMALL - 1), max_size=3).map(tuple),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=30, deadline=None)
@given(
    rules=st.lists(_RULES, min_size=1, max_size=3), seed=st.integers(0, 2**31),
    grain=st.sampled_from([1.0, 1e-6]), dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)  # fmt: skip
def test_every_row_is_picked_as_the_picker_picks(
    rules: list[SamplingParams], seed: int, grain: float, dtype: torch.dtype
) -> None:
    """Rows of several requests, with equal logits, at the start and later on."""
    prompt, eos = (1, 2, 3), (4,)
    state = RoundState.empty(slots=len(rules), max_pages=1, steps=1, device=CPU)
    laws = Laws.empty(len(rules), CPU)
    requests = []
    for slot, params in enumerate(rules):
        request = RoundRequest.of(prompt, params, eos_ids=eos, vocab_size=SMALL)
        state.begin(
            slot, root=0, prefix_len=2, remaining=99, temperature=request.temperature,
            seed=params.seed or 0, stops=request.stops,
        )  # fmt: skip
        # Whoever was here before leaves nothing.
        laws.begin(slot, SamplingParams(logit_bias={5: 3.0, 6: 1.0}, top_k=2, temperature=1), 9)
        laws.begin(slot, params, len(prompt))
        requests.append(request)
    draw = torch.Generator().manual_seed(seed)
    written = torch.randint(0, 6, (20,), generator=draw)
    owners = torch.randint(0, len(rules), (20,), generator=draw)
    logits = (3 * torch.randn(20, SMALL, generator=draw) / grain).round() * grain
    logits[torch.rand(logits.shape, generator=draw) < 0.1] = -torch.inf
    logits = logits.to(dtype)
    positions = (len(prompt) - 1 + written).int()
    edited = laws.edited(logits, owners, positions, state.stops)
    assert edited.dtype == torch.float32
    heat = state.temperatures[owners]
    found, broken = TorchRoundOps().pick_sampled(
        laws.cut(edited, owners, heat), heat, state.seeds[owners], positions
    )
    pickers = [TokenPicker(params, prompt, eos, SMALL) for params in rules]
    for row, (owner, count) in enumerate(zip(owners.tolist(), written.tolist(), strict=True)):
        assert int(found[row]) == pickers[owner].pick(logits[row], [0] * count).token
    assert not broken.any()


def test_what_is_not_asked_for_is_not_done() -> None:
    def picks(written: int = 0, **fields: Any) -> Picks:
        params = SamplingParams(**fields)
        request = RoundRequest.of((1,), params, eos_ids=(4,), vocab_size=VOCAB)
        return picks_of([(request, written)])

    assert picks() == picks(top_k=5, top_p=0.5, min_p=0.1) == Picks()
    assert picks(temperature=1.0) == picks(temperature=1.0, min_new_tokens=3, written=3)
    assert picks(temperature=1.0) == Picks(drawn=True)
    assert picks(temperature=1.0, top_k=1) == Picks()
    for cut in ({"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}):
        assert picks(temperature=1.0, **cut) == Picks(drawn=True, cut=True)
    assert picks(logit_bias={1: 1.0}) == picks(min_new_tokens=3, written=2) == Picks(edited=True)
    assert picks(min_new_tokens=3, ignore_eos=True) == Picks()
    many = {token: 1.0 for token in range(BIASES)}
    assert picks(logit_bias=many).edited


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.9, "top_k": 5}, {"logit_bias": {9: 4.0, 77: -3.0}},
    {"temperature": 1.4, "top_p": 0.6, "min_p": 0.05}, {"min_new_tokens": 9},
    {"temperature": 1.0, "min_p": 0.3, "min_new_tokens": 5, "logit_bias": {3: 2.5}}, {},
    {"temperature": 0.7, "ignore_eos": True}, {"temperature": 0.6, "stop_token_ids": (11, 40)},
]  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "pages"),
    [(12, 22), pytest.param(1, 400, marks=pytest.mark.slow),
     pytest.param(30, 400, marks=pytest.mark.slow)],
)  # fmt: skip
def test_all_options_side_by_side_give_what_the_other_engine_gives(
    runner: Runner, answer: Answer, scripted: Any, plain_engine: Engine,
    budget: int, pages: int,
) -> None:  # fmt: skip
    """In one batch, with requests that end, come, change their slots and are preempted."""
    prompts = [tuple(range(i, 2 * i + 2)) for i in range(len(OPTIONS))]
    params = [
        SamplingParams(max_new_tokens=22, seed=7 * i, **fields) for i, fields in enumerate(OPTIONS)
    ]
    # Tokens that come early, so that it matters who may stop.
    free = plain_engine.generate_batch(prompts, SamplingParams(max_new_tokens=6), num_slots=8)
    eos = tuple({each.tokens[2] for each in free})[:4]
    # The other engine's target has end tokens of its own.
    own = [p.stop_token_ids + (() if p.ignore_eos else eos) for p in params]
    rules = [
        replace(p, ignore_eos=True, stop_token_ids=ids) for p, ids in zip(params, own, strict=True)
    ]
    wanted = [each.tokens for each in plain_engine.generate_batch(prompts, rules)]
    texts = [(*prompt, *tokens) for prompt, tokens in zip(prompts, wanted, strict=True)]
    made = runner(scripted(texts, "hidden"), budget=budget, slots=4, pages=pages)
    found = answer(made, prompts, params, eos)
    assert [tuple(each.tokens) for each in found] == wanted
    lengths = [len(tokens) for tokens in wanted]
    assert min(lengths) < 9 <= lengths[3] and lengths[6] == 22
    assert any(each.preemptions for each in found) == (pages < 400)
    kinds = {key[1] for key in made.programs.runs if key[0] != "prompt"}
    assert Picks(drawn=True, edited=True, cut=True) in kinds
