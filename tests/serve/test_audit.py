"""Which requests an audit judges, and how two answers are compared, without vLLM."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_serve.audit.judge import SKIPS, Comparison, Divergence, Finished, skip_reason
from jetflow_serve.audit.tally import Tally, audit_series
from jetflow_serve.metrics.board import Board, Series
from jetflow_serve.metrics.names import GAPS, METRICS

JUDGED = Finished(greedy=True, tokens=3, drafted=True, structured_output=False, only_tokens=True)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({}, None),
        ({"greedy": False}, "sampled"),
        ({"tokens": 0}, "empty"),
        ({"drafted": False}, "off"),
        ({"structured_output": True}, "structured_output"),
        ({"only_tokens": False}, "inputs"),
    ],
)
def test_who_is_judged(changed: dict[str, object], reason: str | None) -> None:
    assert skip_reason(replace(JUDGED, **changed)) == reason
    assert reason is None or reason in SKIPS


@given(st.lists(st.integers(0, 3), min_size=1), st.lists(st.integers(0, 3), min_size=1), st.data())
def test_the_first_difference_is_found_however_tokens_come(
    answer: list[int], again: list[int], data: st.DataObject
) -> None:
    comparison, found, rest = Comparison(answer), None, list(again)
    while rest and found is None:
        count = data.draw(st.integers(1, len(rest)))
        found, rest = comparison.take(rest[:count], []), rest[count:]
    found = found or comparison.end()
    longest = max(len(answer), len(again))
    pairs = zip(
        answer + [-1] * (longest - len(answer)), again + [-1] * (longest - len(again)), strict=True
    )
    differing = [(place, one, two) for place, (one, two) in enumerate(pairs) if one != two]
    if differing:
        assert found == Divergence(*differing[0], None)
    else:
        assert found is None


def test_the_gap_of_a_difference() -> None:
    scores = [{1: -0.5, 7: -1.0}, {2: -0.25, 9: -1.5}]
    assert Comparison([1, 9]).take([1, 2], scores) == Divergence(1, 9, 2, 1.25)
    # Not among the likeliest, or favoured by what was changed after the scores.
    assert Comparison([1, 8]).take([1, 2], scores) == Divergence(1, 8, 2, None)
    assert Comparison([1, 2]).take([1, 9], scores) == Divergence(1, 2, 9, None)
    assert Comparison([3]).take([1, 2], scores) == Divergence(0, 3, 1, None)


def test_what_is_found_has_a_series(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "board", audit_series())
    tally = Tally()
    tally.judged(None)
    for gap in (0.0, 0.3, 1e9, None):
        tally.judged(Divergence(0, 1, 2, gap))
    for reason in SKIPS:
        tally.skipped[reason] += 1
    board.post(tally.values())
    found = board.read()
    assert found[Series("jetflow:audited_requests", ("same",))] == 1
    assert found[Series("jetflow:audited_requests", ("diverged",))] == 4
    gaps = {float(s.labels[0]): n for s, n in found.items() if s.metric == "jetflow:audit_gap"}
    assert set(gaps) == set(GAPS)
    assert [gap for gap, count in gaps.items() if count] == [GAPS[0], 0.32, GAPS[-1]]
    names = {metric.name for metric in METRICS}
    assert {series.metric for series in found} < names
