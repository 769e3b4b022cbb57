"""The audit in a real engine: it agrees where trees are right, and tells where they are not."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jetflow_serve.engine.stat_logger import JetFlowStatLogger
from jetflow_serve.refusals import SCHEDULER
from jetflow_serve.v1 import runner as runner_module
from oracle import Oracle
from requests_made import SETS
from running import metric, runner_of, tokens, tree_engine
from vllm.v1.metrics.prometheus import REGISTRY

Known = list[tuple[list[int], list[int]]]
Tokens = dict[str, list[list[int]]]


@contextmanager
def _audited(
    target: Path, head: Path, known: Known, share: float, **options: Any
) -> Iterator[tuple[Any, Any]]:
    options = {"scheduler_cls": SCHEDULER, "disable_log_stats": False, **options}
    with tree_engine(target, head, 16, tree={"audit": share}, **options) as llm:
        Oracle(known).take_over(runner_of(llm))
        yield llm, llm.llm_engine.engine_core.engine_core.scheduler


def _finish(llm: Any, scheduler: Any) -> None:
    """Steps until no audit is left, as a server does on its own."""
    for _ in range(500):
        if not scheduler.has_requests():
            return
        llm.llm_engine.engine_core.get_output()
    raise TimeoutError("audits do not end")


@pytest.mark.parametrize("caching", [False, True])
def test_right_answers_are_found_the_same(
    target: Path, head: Path, known: Known, plain_tokens: Tokens, caching: bool
) -> None:
    with _audited(target, head, known, 1.0, enable_prefix_caching=caching) as (llm, scheduler):
        before = metric(llm, "vllm:generation_tokens")
        names = ["greedy", "mixed", "shared", "grammar", "logprobs"]
        for name in names:
            assert tokens(llm, SETS[name]) == plain_tokens[name], name
            _finish(llm, scheduler)
        written = sum(len(found) for name in names for found in plain_tokens[name])
        told = metric(llm, "vllm:generation_tokens") - before
    # Requests that a stop string ends write more than they are answered with.
    assert written <= told <= written + 17
    asked = sum(len(SETS[name]) for name in names)
    assert scheduler.tally.results == {"same": asked - 4 - scheduler.tally.skipped["busy"]}
    assert scheduler.tally.skipped["off"] == 1
    assert scheduler.tally.skipped["structured_output"] == 3
    assert scheduler.tally.results["same"] > 15


def test_wrong_answers_are_told_with_their_gaps(
    target: Path, head: Path, known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    monkeypatch.setattr(runner_module, "move_rows", lambda cache, sources, targets: None)
    handler = Kept()
    logging.getLogger("vllm.jetflow").addHandler(handler)
    with _audited(target, head, known, 1.0) as (llm, scheduler):
        stats = JetFlowStatLogger(llm.llm_engine.vllm_config, [0])
        tokens(llm, SETS["greedy"])
        _finish(llm, scheduler)
        stats.record(None, None)
        tally = scheduler.tally
    logging.getLogger("vllm.jetflow").removeHandler(handler)
    assert tally.results["diverged"] >= len(SETS["greedy"]) - 1
    assert len(lines) == tally.results["diverged"]
    assert all("differs from plain decoding at token" in line for line in lines)
    # Some of the answers' tokens are among the twenty likeliest.
    assert sum(tally.gaps.values()) > 0
    told = {
        (sample.name, sample.labels.get("result")): sample.value
        for found in REGISTRY.collect()
        for sample in found.samples
    }
    assert told["jetflow:audited_requests_total", "diverged"] == tally.results["diverged"]
    assert told["jetflow:audit_gap_count", None] == sum(tally.gaps.values())


def test_a_share_of_those_that_can_be_judged(
    target: Path, head: Path, known: Known, plain_tokens: Tokens
) -> None:
    with _audited(target, head, known, 0.5) as (llm, scheduler):
        for _ in range(4):
            assert tokens(llm, SETS["greedy"]) == plain_tokens["greedy"]
            _finish(llm, scheduler)
        drawn = scheduler.tally.results["same"] + scheduler.tally.skipped["busy"]
        assert 4 < drawn < 24
        for prompt, params in SETS["greedy"]:
            sampled = params.clone()
            sampled.temperature = 1.0
            tokens(llm, [(prompt, sampled)])
        assert set(scheduler.tally.skipped) <= {"sampled", "busy"}
        assert scheduler.tally.skipped["sampled"] > 0
    assert set(scheduler.tally.results) == {"same"}
