"""Sampled answers follow the exact law, whatever was drafted and accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact import ExactLaw, chi_square
from jetflow_serve.v1 import sampler as sampler_module
from jetflow_tree import Candidates
from requests_made import prompt
from running import runner_of, tokens, tree_engine
from vllm import LLM, SamplingParams

PROMPT = prompt(11)
DRAWS = 1200
DEPTH = 3


def _plant(llm: LLM, law: ExactLaw) -> None:
    """The likeliest tokens of every depth become the candidates there, so that much is kept."""
    runner = runner_of(llm)
    draft = runner.drafter.draft
    likely = [sorted(law.marginal(d), key=law.marginal(d).get)[::-1][:16] for d in range(DEPTH)]

    def planted(asks: Any, last: Any, common: Any) -> list[Candidates]:
        found = draft(asks, last, common)
        return [
            _table(entry, likely[ask.place + 1 - len(PROMPT) :])
            for ask, entry in zip(asks, found, strict=True)
        ]

    runner.drafter.draft = planted


def _table(found: Candidates, likely: list[list[int]]) -> Candidates:
    ids = found.tokens.copy()
    for level, best in enumerate(likely[: found.depth]):
        others = [token for token in ids[level].tolist() if token not in best]
        ids[level] = [*best, *others][: found.width]
    scores = np.broadcast_to(np.log(0.5) * np.arange(1, found.width + 1), found.log_probs.shape)
    return Candidates(ids, scores)


def _draws(llm: LLM, **options: Any) -> list[tuple[int, ...]]:
    requests = [
        (PROMPT, SamplingParams(max_tokens=DEPTH, ignore_eos=True, seed=seed, **options))
        for seed in range(DRAWS)
    ]
    return [tuple(answer) for answer in tokens(llm, requests)]


def _exceeded(found: list[tuple[int, ...]], law: ExactLaw) -> list[str]:
    """Which of the tests a sample fails."""
    tests = {f"token {place}": ([one[place] for one in found], law.marginal(place))
             for place in range(DEPTH)}  # fmt: skip
    tests["pairs"] = ([one[:2] for one in found], law.pairs())
    return [
        name
        for name, (draws, expected) in tests.items()
        if (ends := chi_square(draws, expected))[0] > ends[1]
    ]


@pytest.mark.parametrize(
    "options",
    [{"temperature": 1.0, "top_k": 8}, {"temperature": 0.7, "top_p": 0.6, "top_k": 20}],
    ids=["top-k", "nucleus"],
)
def test_the_exact_law(target: Path, head: Path, options: dict[str, Any]) -> None:
    law = ExactLaw(target, PROMPT, DEPTH, **options)
    with tree_engine(target, head, 24, max_num_seqs=24) as llm:
        _plant(llm, law)
        found = _draws(llm, **options)
        accepted = runner_of(llm).counters.accepted
    assert accepted > DRAWS / 2
    assert all(one in law.answers for one in found)
    assert _exceeded(found, law) == []


def test_noise_that_forgets_its_place_is_found_out(
    target: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = sampler_module.draw
    monkeypatch.setattr(sampler_module, "draw", lambda row, seed, place: draw(row, seed, 0))
    options = {"temperature": 1.0, "top_k": 8}
    law = ExactLaw(target, PROMPT, DEPTH, **options)
    with tree_engine(target, head, 24, max_num_seqs=24) as llm:
        _plant(llm, law)
        found = _draws(llm, **options)
    assert "pairs" in _exceeded(found, law)


def test_a_seed_says_it_all(target: Path, head: Path) -> None:
    """A seeded request is answered alike alone, beside others, later, and with other drafts."""
    params = [SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, seed=seed)
              for seed in (1, None, 2)]  # fmt: skip
    prompts = [prompt(9), prompt(10), prompt(14)]
    requests = list(zip(prompts, params, strict=True))
    found = []
    for nodes in (16, 5):
        with tree_engine(target, head, nodes) as llm:
            found += [tokens(llm, requests) for _ in range(2)]
            found += [[tokens(llm, [request])[0] for request in requests]]
    for answer in found[1:]:
        assert answer[0] == found[0][0]
        assert answer[2] == found[0][2]
    assert len({tuple(answer[1]) for answer in found[:3]}) == 3
