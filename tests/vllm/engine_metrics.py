"""What the worker counts reaches Prometheus' registry, agrees with vLLM's own, and with usage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jetflow_serve.engine.stat_logger import JetFlowStatLogger
from jetflow_serve.metrics.names import METRICS
from oracle import Oracle
from requests_made import SETS
from running import engine, runner_of, tokens, tree_engine
from vllm.v1.metrics.prometheus import REGISTRY

Tokens = dict[str, list[list[int]]]


def _told(prefix: str) -> dict[tuple[str, ...], float]:
    """Samples by name and labels, vLLM's common labels left out."""
    found: dict[tuple[str, ...], float] = Counter()
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            if sample.name.startswith(prefix) and not sample.name.endswith("_created"):
                own = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
                found[sample.name, *own] += sample.value
    return found


@pytest.mark.parametrize("names", [["greedy"], ["greedy", "mixed", "grammar"]])
def test_they_agree_with_vllms_and_with_usage(
    target: Path, head: Path, known: Any, plain_tokens: Tokens, names: list[str]
) -> None:
    with tree_engine(target, head, 16, disable_log_stats=False) as llm:
        config = llm.llm_engine.vllm_config
        logger = JetFlowStatLogger(config, [0])
        before = _told("vllm:")
        Oracle(known).take_over(runner_of(llm))
        written = 0
        for name in names:
            found = tokens(llm, SETS[name])
            assert found == plain_tokens[name]
            written += sum(map(len, found))
            logger.record(None, None)
        counted = runner_of(llm).counters.to_dict()
        mine, theirs = _told("jetflow:"), _told("vllm:")
    for name in ("num_drafts", "num_draft_tokens", "num_accepted_tokens"):
        key = (f"vllm:spec_decode_{name}_total",)
        theirs[key] -= before.get(key, 0.0)
    rounds = [mine["jetflow:rounds_total", shape] for shape in ("tree", "chain", "plain")]
    accepted = sum(
        value for key, value in mine.items() if key[0] == "jetflow:accepted_by_depth_total"
    )
    assert rounds[0] + rounds[1] == theirs["vllm:spec_decode_num_drafts_total",]
    assert mine["jetflow:nodes_total",] == theirs["vllm:spec_decode_num_draft_tokens_total",]
    assert accepted == theirs["vllm:spec_decode_num_accepted_tokens_total",] > 50
    for depth, count in counted["accepted_by_depth"].items():
        own = mine["jetflow:accepted_by_depth_total", str(depth)]
        assert own == count
        # vLLM numbers positions from 0.
        key = ("vllm:spec_decode_num_accepted_tokens_per_pos_total", str(depth - 1))
        assert own == theirs[key] - before.get(key, 0.0)
    # Every round gives a token besides those kept; only what stands behind an end is not written.
    requests = sum(len(SETS[name]) for name in names)
    assert 0 <= sum(rounds) + accepted - written <= 7 * requests
    assert mine["jetflow:round_rows_count",] == sum(rounds)
    assert mine["jetflow:round_rows_sum",] == sum(rounds) + mine["jetflow:nodes_total",]
    assert mine["jetflow:tree_depth_count",] == rounds[0] + rounds[1]
    reasons = {key[2] for key in mine if key[0] == "jetflow:fallbacks_total"}
    assert reasons == set(counted["reasons"])
    assert ("off" in reasons) == ("mixed" in names)
    assert 1 <= mine["jetflow:budget",] <= 17


def test_every_metric_is_registered_once_again(target: Path, head: Path) -> None:
    with tree_engine(target, head, 4) as llm:
        JetFlowStatLogger(llm.llm_engine.vllm_config, [0])
        JetFlowStatLogger(llm.llm_engine.vllm_config, [0])
    registered = [m.name for m in REGISTRY.collect() if m.name.startswith("jetflow:")]
    assert sorted(registered) == sorted(metric.name for metric in METRICS)


def test_a_server_without_trees_tells_nothing(target: Path) -> None:
    before = _told("jetflow:")
    with engine(target) as llm:
        logger = JetFlowStatLogger(llm.llm_engine.vllm_config, [0])
        logger.record(None, None)
    assert _told("jetflow:") == before
