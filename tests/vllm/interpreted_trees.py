"""Model Runner V2, its kernels in Triton's interpreter: the same text with trees as without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jetflow_serve.refusals import SCHEDULER
from jetflow_serve.v2 import state as state_module
from oracle import Oracle
from requests_made import greedy, prompt
from running import Request, answers, engine, runner_of, tree_engine
from vllm import LLM, SamplingParams

GREEDY: list[Request] = [(prompt(length), greedy(24)) for length in (5, 23, 32, 60)]
# vLLM's own kernels for top-k, top-p and grammars do not run in the interpreter.
SEEDED: list[Request] = [
    (prompt(length), SamplingParams(temperature=heat, max_tokens=16, ignore_eos=True, seed=length))
    for length, heat in ((7, 1.0), (17, 0.6), (27, 1.2))
]
MIXED: list[Request] = [
    (prompt(9), greedy(16, repetition_penalty=1.3)),
    (prompt(10), greedy(16, frequency_penalty=-2.0)),
    (prompt(12), greedy(16, bad_words=["the", "a"])),
    (prompt(15), greedy(20, stop_token_ids=list(range(100, 220)), min_tokens=11)),
    (prompt(16), greedy(12, allowed_token_ids=list(range(50, 90)))),
    (prompt(8), greedy(12, logprobs=3)),
    (prompt(11), greedy(8, logprob_token_ids=[5, 9, 33])),
]  # fmt: skip
SETS = {"greedy": GREEDY, "seeded": SEEDED, "mixed": MIXED}


@pytest.fixture(scope="module")
def wanted(target: Path) -> dict[str, list[Any]]:
    with engine(target) as llm:
        return {name: answers(llm, requests) for name, requests in SETS.items()}


@pytest.fixture(scope="module")
def trees(target: Path, head: Path, wanted: dict[str, list[Any]]) -> Iterator[LLM]:
    known = [
        (request[0], list(answer.token_ids))
        for name, requests in SETS.items()
        for request, answer in zip(requests, wanted[name], strict=True)
    ]
    with tree_engine(target, head, 12) as llm:
        Oracle(known).take_over(runner_of(llm))
        yield llm


def _tokens(found: list[Any]) -> list[list[int]]:
    return [list(answer.token_ids) for answer in found]


@pytest.mark.parametrize("name", SETS)
def test_the_same_tokens(trees: LLM, wanted: dict[str, list[Any]], name: str) -> None:
    counters = runner_of(trees).counters
    before = counters.moved
    found = answers(trees, SETS[name])
    assert _tokens(found) == _tokens(wanted[name])
    assert counters.moved > before
    assert counters.accepted > counters.rounds / 3
    for ours, theirs in zip(found, wanted[name], strict=True):
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        for one, other in zip(ours.logprobs or [], theirs.logprobs or [], strict=True):
            assert one.keys() == other.keys()
            for token in one:
                assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)


def test_who_gets_no_tree_is_counted(trees: LLM) -> None:
    reasons = runner_of(trees).counters.to_dict()["reasons"]
    assert set(reasons) == {"penalties", "bad_words", "logprob_token_ids"}


def test_without_the_move(
    trees: LLM, wanted: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_module, "move_rows", lambda cache, sources, targets: None)
    found = _tokens(answers(trees, GREEDY))
    assert all(one != other for one, other in zip(found, _tokens(wanted["greedy"]), strict=True))


# The last one: an engine of its own ends what the other stands on.
def test_budget_auto_and_the_audit(
    target: Path,
    head: Path,
    wanted: dict[str, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tree = {"budget": "auto", "audit": 1.0}
    options = {"scheduler_cls": SCHEDULER, "max_num_seqs": 1, "max_model_len": 128}
    with tree_engine(target, head, 5, tree=tree, **options) as llm:
        core = llm.llm_engine.engine_core
        scheduler = core.engine_core.scheduler
        assert _tokens(answers(llm, GREEDY[:2])) == _tokens(wanted["greedy"][:2])
        while scheduler.has_requests():
            core.get_output()
        counted = runner_of(llm).counters.to_dict()
    assert scheduler.tally.results == {"same": 2}
    assert sum(counted["auto"].values()) >= 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jetflow"]
