"""With trees an engine writes what it writes without speculation, token for token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from oracle import Oracle
from requests_made import SETS
from running import answers, metric, runner_of, tokens, tree_engine

Tokens = dict[str, list[list[int]]]
Known = list[tuple[list[int], list[int]]]


def _checked(llm: Any, known: Known, plain: Tokens, names: list[str]) -> dict[str, Any]:
    """Answers all sets with planted acceptance, compares, and returns what was counted."""
    runner = runner_of(llm)
    Oracle(known).take_over(runner)
    for name in names:
        assert tokens(llm, SETS[name]) == plain[name], name
    return runner.counters.to_dict()


@pytest.mark.parametrize(("nodes", "requests"), [(16, 4), (63, 4), (200, 2)])
def test_trees_of_every_size(
    target: Path, head: Path, known: Known, plain_tokens: Tokens, nodes: int, requests: int
) -> None:
    with tree_engine(target, head, nodes, max_num_seqs=requests) as llm:
        for _ in range(2):
            counted = _checked(llm, known, plain_tokens, ["greedy"])
    # Trees branch, paths are kept, and rows that were no neighbours were moved.
    assert counted["branching"] == counted["rounds"] > 50
    assert counted["accepted"] > counted["rounds"] / 2
    assert counted["moved"] > 50
    assert max(counted["accepted_by_depth"]) >= 4


def test_everything_else_a_request_may_ask_for(
    target: Path,
    head: Path,
    known: Known,
    plain: dict[str, list[Any]],
    plain_tokens: Tokens,
) -> None:
    with tree_engine(target, head, 24) as llm:
        counted = _checked(llm, known, plain_tokens, ["mixed", "grammar"])
        assert counted["moved"] > 50
        for name in ("logprobs", "named"):
            before = runner_of(llm).counters.accepted
            _same_logprobs(answers(llm, SETS[name]), plain[name])
            assert (runner_of(llm).counters.accepted > before) == (name == "logprobs")
        counted = runner_of(llm).counters.to_dict()
    assert set(counted["reasons"]) == {
        "penalties", "bad_words", "structured_output", "logprob_token_ids", "off",
    }  # fmt: skip


def _same_logprobs(found: list[Any], wanted: list[Any]) -> None:
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert len(ours.logprobs) == len(theirs.logprobs) == len(theirs.token_ids)
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert one.keys() == other.keys()
            for token in one:
                assert one[token].rank == other[token].rank
                assert one[token].logprob == pytest.approx(other[token].logprob, abs=1e-4)


def test_prompts_in_chunks(target: Path, head: Path, known: Known, plain_tokens: Tokens) -> None:
    with tree_engine(target, head, 12, max_num_batched_tokens=32, max_num_seqs=2) as llm:
        counted = _checked(llm, known, plain_tokens, ["long", "greedy"])
    assert counted["moved"] > 20


def test_prefixes_from_the_cache(
    target: Path, head: Path, known: Known, plain_tokens: Tokens
) -> None:
    options = {"enable_prefix_caching": True, "disable_log_stats": False}
    with tree_engine(target, head, 16, **options) as llm:
        for _ in range(2):
            counted = _checked(llm, known, plain_tokens, ["shared"])
        assert metric(llm, "vllm:prefix_cache_hits") >= 4 * 256
    assert counted["moved"] > 20


def test_a_pool_too_small_for_all(
    target: Path, head: Path, known: Known, plain_tokens: Tokens
) -> None:
    options = {"num_gpu_blocks_override": 9, "max_model_len": 256, "disable_log_stats": False}
    with tree_engine(target, head, 16, **options) as llm:
        counted = _checked(llm, known, plain_tokens, ["greedy"])
        assert metric(llm, "vllm:num_preemptions") > 0
    assert counted["moved"] > 50


def test_the_end_of_the_context(
    target: Path, head: Path, known: Known, plain_tokens: Tokens
) -> None:
    with tree_engine(target, head, 40) as llm:
        counted = _checked(llm, known, plain_tokens, ["to_the_end"])
    assert counted["moved"] > 50


def test_width_by_load(target: Path, head: Path, known: Known, plain_tokens: Tokens) -> None:
    widths = [[1, 1, 16], [2, 3, 10], [4, 4, 6]]
    with tree_engine(
        target, head, 16, speculative={"num_speculative_tokens_per_batch_size": widths}
    ) as llm:
        counted = _checked(llm, known, plain_tokens, ["greedy"])
    assert counted["accepted"] > 50


def test_chains(target: Path, head: Path, known: Known, plain_tokens: Tokens) -> None:
    with tree_engine(target, head, 7, tree={"mode": "chain"}) as llm:
        counted = _checked(llm, known, plain_tokens, ["greedy", "mixed", "grammar"])
    assert counted["branching"] == counted["moved"] == 0
    assert counted["accepted"] > 10
