"""The benchmark of the builders reports every builder; best-first works no more than a heap."""

import heapq
import json

import pytest
from jetflow_tree import BestFirst, frontier, reference
from jetflow_tree.bench import random_candidates, run
from jetflow_tree.reference import plain_heap


def test_a_run_reports_every_builder_on_both_tables_as_plain_values():
    lines = []
    report = run(budgets=(4, 9), depth=3, width=4, repeats=2, on_progress=lines.append)
    rows = json.loads(json.dumps(report))["rows"]
    builders = {"plain heap", "best-first", "best-first, callback", "all children", "chain"}
    cases = {(row["table"], row["budget"], row["builder"]) for row in rows}
    assert cases == {
        (table, budget, builder)
        for table in ("marginal", "path-conditioned")
        for budget in (4, 9)
        for builder in builders
    }
    assert all(row["median_us"] >= row["min_us"] > 0.0 for row in rows)
    assert all(row["ratio"] == 1.0 for row in rows if row["builder"] == "plain heap")
    assert len(lines) == len(report["expansion"]) == 4
    assert [row["table"] for row in report["candidates"]] == ["marginal", "path-conditioned"]


def test_a_run_without_turns_is_refused():
    with pytest.raises(ValueError, match="repeats must be at least 1, got 0"):
        run(repeats=0)


@pytest.mark.parametrize("parents", [1, 16])
@pytest.mark.parametrize("budget", [64, 256])
def test_best_first_pushes_and_pops_no_more_than_a_plain_heap(monkeypatch, parents, budget):
    """What a clock says is for ``jetflow bench tree``; the work itself can be counted."""
    candidates = random_candidates(16, 16, parents, 0)
    ours = heap_calls(monkeypatch, frontier, lambda: BestFirst().build(1, candidates, budget))
    plain = heap_calls(monkeypatch, reference, lambda: plain_heap(1, candidates, budget))
    assert budget - 1 <= ours <= plain


@pytest.mark.parametrize("parents", ["marginal", "conditioned"])
def test_the_heap_works_as_little_for_many_candidates_as_for_few(monkeypatch, parents):
    def calls(width):
        candidates = random_candidates(16, width, 1 if parents == "marginal" else width, 0)
        return heap_calls(monkeypatch, frontier, lambda: BestFirst().build(1, candidates, 256))

    assert max(calls(16), calls(200)) <= 2 * 256


def heap_calls(monkeypatch, module, work):
    """How often a piece of work calls the heap by the names its module imported."""
    calls = 0

    def counted(function):
        def call(*arguments):
            nonlocal calls
            calls += 1
            return function(*arguments)

        return call

    with monkeypatch.context() as patched:
        for name in ("heapify", "heappop", "heappush", "heappushpop"):
            if hasattr(module, name):
                patched.setattr(module, name, counted(getattr(heapq, name)))
        work()
    return calls
