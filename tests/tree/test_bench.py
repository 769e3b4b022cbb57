"""The benchmark of the builders reports every builder, and best-first is no slower than a heap."""

import json

import pytest
from jetflow_tree import BestFirst
from jetflow_tree.bench import random_candidates, run, take_turns
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
def test_best_first_is_no_slower_than_a_plain_heap(parents, budget):
    """The fastest of many alternating turns each; a fifth is left for the machine's noise."""
    candidates = random_candidates(16, 16, parents, 0)
    times = take_turns(
        {
            "ours": lambda: BestFirst().build(1, candidates, budget),
            "plain": lambda: plain_heap(1, candidates, budget),
        },
        150,
    )
    assert times["ours"][1] <= 1.2 * times["plain"][1]
