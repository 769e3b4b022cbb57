"""What rounds cost: tables that make sense, files that fit or are refused, and what is measured."""

import json
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.rounds import AutoBudget, RoundCosts
from jetflow_core.rounds.auto.cost_file import cost_file, store_costs, stored_costs
from jetflow_core.rounds.auto.costs import buckets_up_to, totals_for, tree_rows_for
from jetflow_core.rounds.auto.measure import contexts_for, measured_costs
from jetflow_core.rounds.auto.ready import ready_costs

KEY = {"device": "some", "shape": {"layers": 3}}
SECONDS = {(1, 1): (1.0, 2.0), (1, 8): (1.5, 2.5), (4, 4): (1.0, 4.0), (4, 16): (3.0, 2.0)}
COSTS = RoundCosts(contexts=(10, 20), seconds=SECONDS)


def test_costs_by_requests_rows_and_context() -> None:
    assert COSTS.requests == (1, 4) and COSTS.totals(4) == (16,) and COSTS.totals(1) == (8,)
    assert [COSTS.bucket(slots) for slots in (1, 2, 4, 9)] == [1, 4, 4, 4]
    assert [COSTS.at(1, 1, context) for context in (0, 10, 15, 30)] == [1.0, 1.0, 1.5, 3.0]
    # A longer context is never cheaper.
    assert COSTS.at(4, 16, 20) == 3.0
    single = RoundCosts(contexts=(5,), seconds={(1, 1): (2.0,)})
    assert single.at(1, 1, 100) == 2.0 and single.totals(1) == ()
    with pytest.raises(KeyError):
        COSTS.at(1, 16, 0)


@pytest.mark.parametrize(
    ("contexts", "seconds", "word"),
    [
        ((), {(1, 1): ()}, "one or two ascending"),
        ((2, 1), {(1, 1): (1.0, 1.0)}, "one or two ascending"),
        ((-1,), {(1, 1): (1.0,)}, "at least 0 rows"),
        ((1,), {}, "at least one"),
        ((1,), {(1, 8): (1.0,)}, "no plain round of 1"),
        ((1,), {(2, 1): (1.0,)}, "2 requests and 1 rows cannot be"),
        ((1,), {(0, 0): (1.0,)}, "cannot be"),
        ((1,), {(1, 1): (1.0, 2.0)}, "needs 1 times, has 2"),
        ((1,), {(1, 1): (0.0,)}, "positive seconds"),
        ((1,), {(1, 1): (float("nan"),)}, "positive seconds"),
    ],
)
def test_numbers_that_no_cost_can_be_are_refused(contexts: Any, seconds: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        RoundCosts(contexts=contexts, seconds=seconds)


def test_sizes_that_are_tried() -> None:
    assert buckets_up_to(1, 9) == [1] and buckets_up_to(5, 9) == [1, 2, 4, 8]
    assert buckets_up_to(5, 6) == [1, 2, 4, 6]
    assert buckets_up_to(8, 8, factor=4) == [1, 4, 8] and buckets_up_to(3, 3, factor=4) == [1, 3]
    assert totals_for(1, most=256, most_total=1024)[-1] == 256
    assert totals_for(8, most=256, most_total=100) == (16, 24, 32, 48, 64, 96)
    assert totals_for(600, most=256, most_total=1024) == ()
    assert tree_rows_for(4, 4, most=256) == 1
    assert tree_rows_for(4, 32, most=256) == 32
    assert tree_rows_for(4, 33, most=256) == 64
    assert tree_rows_for(1, 256, most=200) == 200
    assert contexts_for(4096, steps=6) == (32, 4089)
    assert contexts_for(3, steps=6) == (0,)


def test_sizes_are_measured_until_they_cannot_pay() -> None:
    asked: list[tuple[int, int, int, int]] = []

    def timed(requests: int, total: int, rows: int, context: int) -> float:
        asked.append((requests, total, rows, context))
        # Noise: a pass of 8 rows seems to take longer than one of 16.
        return 1.0 + context + {8: 5.0}.get(total, 0.05 * total)

    costs = measured_costs(timed, [1], (0,), most=256, most_total=1024)
    assert costs.at(1, 8, 0) == costs.at(1, 16, 0) == 1.8
    assert costs.totals(1)[-1] == asked[-1][1] == 128
    assert asked[0] == (1, 1, 1, 0) and asked[3] == (1, 8, 32, 0)


def test_a_file_gives_back_what_was_stored(tmp_path: Path) -> None:
    file = cost_file(KEY, tmp_path / "deep")
    assert file != cost_file({**KEY, "device": "other"}, tmp_path / "deep")
    assert stored_costs(file, KEY) is None
    assert store_costs(file, KEY, COSTS)
    assert stored_costs(file, KEY) == COSTS
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert stored_costs(file, {**KEY, "more": 1}) is None
    (tmp_path / "file").touch()
    assert not store_costs(tmp_path / "file" / "costs.json", KEY, COSTS)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"}, {"key": {}}, {"costs": None}, {"costs": {"contexts": [1]}},
        {"costs": {"contexts": [1], "requests_rows_seconds": [[1, 1, -2.0]]}},
        {"costs": {"contexts": [1], "requests_rows_seconds": [[1, 1, 2.0, 3.0]]}},
        {"costs": {"contexts": [1], "requests_rows_seconds": [["x", 1, 2.0]]}},
    ],
)  # fmt: skip
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "costs.json"
    store_costs(file, KEY, COSTS)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert stored_costs(file, KEY) is None
    file.write_text("{")
    assert stored_costs(file, KEY) is None


def test_costs_are_measured_once_and_only_where_they_lack(tmp_path: Path) -> None:
    asked: list[int] = []

    def timed(requests: int, total: int, rows: int, context: int) -> float:
        asked.append(requests)
        return 1.0

    given: dict[str, Any] = {"contexts": (3,), "folder": tmp_path}
    for requests, new in ((2, {1, 2}), (2, set()), (5, {4, 8}), (8, set())):
        asked.clear()
        auto = AutoBudget(most=8)
        wanted = buckets_up_to(requests, 8)
        assert ready_costs(auto, timed, KEY, wanted, **given) == bool(new)
        assert set(asked) == new and auto.costs is not None
        assert auto.costs.requests[-1] >= requests
    asked.clear()
    assert ready_costs(AutoBudget(most=16), timed, KEY, [1], **given), "other sizes"
    own = AutoBudget(RoundCosts(contexts=(0,), seconds={(2, 2): (1.0,)}))
    asked.clear()
    assert not ready_costs(own, timed, KEY, [1, 2], **given) and not asked
    with pytest.raises(ValueError, match=r"of \[2\] requests; up to 3"):
        ready_costs(own, timed, KEY, [1, 2, 3], **given)
