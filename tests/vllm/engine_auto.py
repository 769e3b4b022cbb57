"""Budget ``auto`` in a real engine: steps are timed once, and the text stays the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.rounds import RoundCosts
from jetflow_core.rounds.auto import ready
from jetflow_serve.engine.step_costs import StepTimer
from oracle import Oracle
from requests_made import SETS
from running import runner_of, tokens, tree_engine

Known = list[tuple[list[int], list[int]]]
Tokens = dict[str, list[list[int]]]
Seconds = Callable[[int, int], float]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jetflow" / "rounds"


def _made_up(monkeypatch: pytest.MonkeyPatch, seconds: Seconds) -> None:
    """Steps take what ``seconds`` says of requests and rows."""

    def measured(timed: Any, requests: Any, contexts: Any, **limits: Any) -> RoundCosts:
        sizes = [(r, t) for r in requests for t in (r, 4 * r, 8 * r)]
        return RoundCosts(
            contexts=contexts, seconds={(r, t): (seconds(r, t),) * len(contexts) for r, t in sizes}
        )

    monkeypatch.setattr(ready, "measured_costs", measured)


def _flat(requests: int, total: int) -> float:
    return 0.01 + 1e-5 * total


def _steep(requests: int, total: int) -> float:
    return 0.01 * total


def test_steps_are_timed_once(
    target: Path, head: Path, cache: Path, plain_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[tuple[int, int]] = []
    once = StepTimer.__call__

    def noted(self: StepTimer, requests: int, total: int, rows: int, context: int) -> float:
        seconds = once(self, requests, total, rows, context)
        timed.append((requests, total))
        return seconds

    monkeypatch.setattr(StepTimer, "__call__", noted)
    for first in (True, False):
        with tree_engine(target, head, 15, tree={"budget": "auto"}) as llm:
            assert runner_of(llm).counters.to_dict()["rounds"] == 0
            assert tokens(llm, SETS["greedy"]) == plain_tokens["greedy"]
            counted = runner_of(llm).counters.to_dict()
        assert (len(timed) > 0) == first
        assert {requests for requests, _ in timed} == ({1, 4} if first else set())
        assert sum(counted["auto"].values()) > 20
        assert len(list(cache.iterdir())) == 1
        timed.clear()


@pytest.mark.parametrize(
    ("seconds", "pays"), [(_flat, True), (_steep, False)], ids=["flat", "steep"]
)
def test_trees_only_where_they_pay(
    target: Path,
    head: Path,
    known: Known,
    plain_tokens: Tokens,
    monkeypatch: pytest.MonkeyPatch,
    seconds: Seconds,
    pays: bool,
) -> None:
    _made_up(monkeypatch, seconds)
    names = ["greedy", "mixed", "grammar", "long"]
    with tree_engine(target, head, 15, tree={"budget": "auto"}) as llm:
        Oracle(known).take_over(runner_of(llm))
        for name in names:
            assert tokens(llm, SETS[name]) == plain_tokens[name], name
        counted = runner_of(llm).counters.to_dict()
    if pays:
        assert counted["auto"]["pays"] > 50
        assert counted["accepted"] > counted["plain"]
        assert len(counted["rows"]) > 8
        assert set(counted["reasons"]) >= {"off", "penalties", "structured_output"}
    else:
        # The first look, and what the account lends.
        assert counted["plain"] > 20 * counted["rounds"] > 0
        assert counted["auto"]["plain pays"] > 100
