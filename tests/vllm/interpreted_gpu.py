"""The adapter of a GPU in an engine on a CPU: the CPU adapter's drafts, and the same text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import packed_engine
import pytest
from jetflow_serve.engine import worker as worker_module
from requests_made import greedy, prompt
from running import Request, answers, engine, runner_of, tokens, tree_engine
from vllm import LLM, SamplingParams

# The longest are computed in pieces, which no tree attention takes.
GREEDY: list[Request] = [(prompt(length), greedy(16)) for length in (5, 23, 100, 130)]
MIXED: list[Request] = [
    (prompt(9), greedy(12, repetition_penalty=1.3)),
    (prompt(8), greedy(12, logprobs=3)),
    (prompt(6), greedy(8, extra_args={"jetflow_budget": 5})),
    (prompt(7), SamplingParams(temperature=0.7, max_tokens=12, ignore_eos=True, seed=1)),
]
ALL = [*GREEDY, *MIXED]
OPTIONS: dict[str, Any] = {"max_num_batched_tokens": 128}


@pytest.fixture(scope="module")
def drafted_by_cpu(target: Path, head: Path) -> list[Any]:
    with tree_engine(target, head, 12, **OPTIONS) as llm:
        runner = runner_of(llm)

        def tree(batch: Any, index: int) -> Any:
            return runner.drafts.trees.get(batch.req_ids[index])

        return _drafts(llm, lambda *where: None if (found := tree(*where)) is None else
                       [found.tokens.tolist(), found.parents.tolist()])  # fmt: skip


@pytest.fixture(scope="module")
def wanted(target: Path) -> list[Any]:
    with engine(target) as llm:
        return answers(llm, ALL)


@pytest.fixture(scope="module")
def packed(target: Path, head: Path, drafted_by_cpu: Any, wanted: Any) -> Iterator[LLM]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_module, "TreeWorker", packed_engine.PackedWorker)
        with tree_engine(target, head, 12, **OPTIONS) as llm:
            yield llm


def _drafts(llm: LLM, tree: Any) -> list[Any]:
    """The trees of all steps, request by request."""
    speculator, seen = runner_of(llm).speculator, []
    propose = speculator.propose

    def recorded(batch: Any, *rest: Any, **options: Any) -> Any:
        found = propose(batch, *rest, **options)
        seen.append([tree(batch, index) for index in range(batch.num_reqs)])
        return found

    speculator.propose = recorded
    tokens(llm, ALL)
    speculator.propose = propose
    return seen


def test_the_drafts_are_those_of_the_cpus_adapter(packed: LLM, drafted_by_cpu: list[Any]) -> None:
    step = runner_of(packed).step

    def tree(batch: Any, index: int) -> Any:
        slots = batch.idx_mapping[index : index + 1]
        own = step.trees.take(slots, slots.new_full((1,), 99).int(), slots.new_ones(1).bool())
        rows = int(own.nodes[0])
        if not step.planned[batch.req_ids[index]] or rows < 2:
            return None
        return [own.tokens[0, :rows].tolist(), own.parents[0, :rows].tolist()]

    found = _drafts(packed, tree)
    assert sum(each is not None for line in found for each in line) > 60
    assert found == drafted_by_cpu


def test_the_same_tokens(packed: LLM, wanted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(packed)
    texts = [list(answer.token_ids) for answer in wanted]
    packed_engine.plant(
        runner, [(request[0], text) for request, text in zip(ALL, texts, strict=True)]
    )
    before = runner.counters.to_dict()
    found = answers(packed, ALL)
    assert [list(answer.token_ids) for answer in found] == texts
    counted = runner.counters.to_dict()
    rounds, accepted, moved = (counted[name] - before[name] for name in
                               ("rounds", "accepted", "moved"))  # fmt: skip
    assert moved > 0 and accepted > rounds / 3
    assert counted["reasons"].keys() == {"penalties"}
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        for one, other in zip(ours.logprobs or [], theirs.logprobs or [], strict=True):
            for token, entry in other.items():
                assert one[token].logprob == pytest.approx(entry.logprob, abs=1e-4)
    # The control: without the move the text is another.
    monkeypatch.setattr(packed_engine.TorchRoundOps, "commit_path", lambda *arguments: None)
    changed = answers(packed, GREEDY)
    assert [list(answer.token_ids) for answer in changed] != texts[: len(GREEDY)]
