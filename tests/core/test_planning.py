"""The planner's costs, and what it makes of them in simulated decoding with known times."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from jetflow_core.planning import costs, measure
from jetflow_core.planning.auto import AutoPlanner
from jetflow_core.planning.costs import StepCosts, measure_steps
from jetflow_core.planning.fixed import FixedPlanner
from jetflow_core.protocols import Phases, TreePlanner
from jetflow_tree import Accepted, BestFirst, Candidates, Tree, lazy_walk

DEPTH, WIDTH = 15, 8
DRAFT = StepCosts([1, 15], [0.2, 0.5])
CPU_LIKE = ([1, 4, 8, 16, 32], [1.0, 1.4, 1.7, 2.2, 3.1])


def test_costs_are_straight_lines_between_and_past_the_sizes() -> None:
    curve = StepCosts([1, 3, 7], [1.0, 2.0, 6.0])
    assert curve.curve(np.array([1, 2, 3, 5, 7, 9])).tolist() == [1.0, 1.5, 2.0, 4.0, 6.0, 8.0]
    assert StepCosts([4], [2.0]).at(100) == 2.0


@pytest.mark.parametrize(
    ("sizes", "seconds"),
    [([], []), ([1, 1], [1.0, 1.0]), ([2, 1], [1.0, 1.0]), ([1], [0.0]), ([1], [float("nan")]),
     ([1, 2], [1.0])],
)  # fmt: skip
def test_impossible_costs_are_refused(sizes: list[int], seconds: list[float]) -> None:
    with pytest.raises(ValueError, match=r"ascend|positive"):
        StepCosts(sizes, seconds)


def test_costs_follow_a_machine_that_gets_slower() -> None:
    curve = StepCosts([1, 8, 16], [1.0, 2.0, 3.0])
    for _ in range(200):
        curve.follow(8, 4.0)
    assert curve.at(8) == pytest.approx(4.0, rel=0.05)
    assert curve.at(16) > 3.0


def test_measuring_takes_the_fastest_of_each_size_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow moments spoil no size, and a size never costs more than a larger one."""
    clock = [0.0]
    calls: list[int] = []

    def step(size: int) -> None:
        calls.append(size)
        slow_moment = 100.0 if len(calls) in (4, 5) else 0.0
        clock[0] += {1: 1.0, 4: 9.0, 8: 2.0}[size] + slow_moment

    monkeypatch.setattr(costs, "perf_counter", lambda: clock[0])
    curve = measure_steps(step, [1, 4, 8], repeats=2)
    assert calls == [1, 4, 8] * 3
    assert [curve.at(size) for size in (1, 4, 8)] == [1.0, 2.0, 2.0]


def _simulate(
    planner: TreePlanner,
    quality: float,
    claimed: float,
    verify: StepCosts,
    tokens: int = 1500,
    requests: int = 1,
    growth: float = 0.0,
) -> float:
    """Tokens per unit of time when a drafted token is right with probability ``quality``.

    The head claims ``claimed`` for its best candidate. Times are those of the curves, exactly.
    ``tokens`` are those of all ``requests``, which are decoded together; each after the first
    adds ``growth`` of a draft's time.
    """
    planner.begin()
    rng = np.random.default_rng(0)
    rest = np.full(WIDTH - 1, np.log((1 - claimed) / WIDTH))
    row = np.concatenate([[np.log(claimed)], rest])
    names = np.tile(np.arange(1, WIDTH + 1), (DEPTH, 1))
    done, time = 0, 0.0
    while done < tokens:
        depth = planner.depth(requests)
        trees = [Tree.root_only(0)] * requests
        if depth:
            candidates = Candidates.marginal(names[:depth], np.tile(row, (depth, 1)))
            trees = planner.grow([0] * requests, [candidates] * requests, [DEPTH] * requests)
        right = rng.random((requests, DEPTH + 1)) < quality
        walks = [_walk(tree, row) for tree, row in zip(trees, right, strict=True)]
        phases = Phases(
            draft=DRAFT.at(depth) * (1 + growth * (requests - 1)) if depth else 0.0,
            verify=verify.at(sum(tree.num_nodes for tree in trees)),
        )
        planner.learn(trees, walks, phases)
        done += sum(len(walk.nodes) + 1 for walk in walks)
        time += phases.total
    return done / time


def _walk(tree: Tree, right: Sequence[bool]) -> Accepted:
    """Follows best candidates (token 1) while they are right."""
    return lazy_walk(tree, lambda row: 1 if right[int(tree.depths[row])] else 99)


def _auto(verify: StepCosts, growth: float = 0.0) -> AutoPlanner:
    fresh = StepCosts(*CPU_LIKE) if verify.at(32) < 10 else StepCosts([1, 32], [1.0, 40.0])
    return AutoPlanner(BestFirst(), draft=StepCosts([1, 15], [0.2, 0.5]), verify=fresh,
                       max_depth=DEPTH, max_rows=32, draft_growth=growth)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "quality", [0.6, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.3, 0.8, 0.95))]
)
def test_auto_is_near_the_best_fixed_choice(quality: float) -> None:
    verify = StepCosts(*CPU_LIKE)
    fixed = max(
        _simulate(FixedPlanner(BestFirst(), budget=budget, depth=depth), quality, quality, verify)
        for budget in (1, 2, 4, 8, 16, 32)
        for depth in (1, 3, 6, 15)
        if depth < budget or budget == 1
    )
    assert _simulate(_auto(verify), quality, quality, verify) > 0.93 * fixed


@pytest.mark.parametrize("claimed", [0.05, 0.5, 0.95])
def test_auto_is_never_much_slower_than_plain(claimed: float) -> None:
    """Also for a head that is always wrong, however sure of itself; plain decoding is 1 here."""
    verify = StepCosts(*CPU_LIKE)
    assert _simulate(_auto(verify), 0.0, claimed, verify) > 0.97


@pytest.mark.parametrize(("requests", "quality"), [(8, 0.8), (8, 0.95), (32, 0.95)])
def test_auto_is_near_the_best_fixed_choice_for_many_requests(
    requests: int, quality: float
) -> None:
    """All rows of a batch share one pass, so that each row costs more of it than for one alone."""
    verify = StepCosts(*CPU_LIKE)
    fixed = max(
        _simulate(
            FixedPlanner(BestFirst(), budget=budget, depth=depth), quality, quality, verify,
            100 * requests, requests,
        )
        for budget, depth in ((1, 1), (2, 1), (4, 3), (8, 6), (16, 15))
    )  # fmt: skip
    found = _simulate(_auto(verify), quality, quality, verify, 400 * requests, requests)
    assert found > 0.93 * fixed
    assert fixed > 1.2 * requests / verify.at(requests), "here trees are worth it"


@pytest.mark.parametrize("requests", [8, 32])
@pytest.mark.parametrize("claimed", [0.05, 0.95])
def test_auto_is_never_much_slower_than_plain_for_many_requests(
    requests: int, claimed: float
) -> None:
    verify = StepCosts(*CPU_LIKE)
    found = _simulate(_auto(verify), 0.0, claimed, verify, 400 * requests, requests)
    assert found > 0.97 * requests / verify.at(requests)


def test_auto_does_not_verify_what_costs_more_than_it_brings() -> None:
    verify = StepCosts([1, 32], [1.0, 40.0])
    assert _simulate(_auto(verify), 0.7, 0.7, verify) > 0.97


def test_without_a_drafter_or_rows_every_round_is_plain() -> None:
    verify = StepCosts(*CPU_LIKE)
    for depth, rows in ((0, 32), (DEPTH, 1)):
        planner = AutoPlanner(
            BestFirst(), draft=DRAFT, verify=verify, max_depth=depth, max_rows=rows
        )
        assert [planner.depth(1) for _ in range(5)] == [0] * 5


def test_a_fixed_budget_drafts_no_deeper_than_it_has_nodes() -> None:
    assert FixedPlanner(BestFirst(), budget=1, depth=15).depth(1) == 0
    assert FixedPlanner(BestFirst(), budget=4, depth=15).depth(1) == 3
    with pytest.raises(ValueError, match="budget 0"):
        FixedPlanner(BestFirst(), budget=0, depth=3)


@pytest.mark.parametrize("texts", [4, 12])
def test_short_texts_that_do_not_pay_cost_little(texts: int) -> None:
    """Each text is tried anew, so the trial must be cheap."""
    verify = StepCosts(*CPU_LIKE)
    planner = _auto(verify)
    rates = [_simulate(planner, 0.15, 0.15, verify, tokens=128) for _ in range(texts)]
    assert len(rates) / sum(1 / rate for rate in rates) > 0.97


def test_a_text_that_pays_is_not_held_back_by_those_before() -> None:
    verify = StepCosts(*CPU_LIKE)
    fresh = _simulate(_auto(verify), 0.8, 0.8, verify, tokens=128)
    planner = _auto(verify)
    for _ in range(6):
        _simulate(planner, 0.1, 0.1, verify, tokens=128)
    assert _simulate(planner, 0.8, 0.8, verify, tokens=128) > 0.85 * fresh


@pytest.mark.parametrize("requests", [8, 32])
@pytest.mark.parametrize(
    ("quality", "claimed", "tokens"),
    # A head that lies is found out by trials, and these take a longer text to pay off.
    [(0.0, 0.95, 400), (0.3, 0.3, 150), (0.6, 0.6, 150), (0.8, 0.8, 150), (0.95, 0.95, 150)],
)
@pytest.mark.parametrize("growth", [0.3, 0.6])
def test_drafts_whose_cost_grows_with_the_batch_never_slow_it_down(
    requests: int, quality: float, claimed: float, tokens: int, growth: float
) -> None:
    verify = StepCosts(*CPU_LIKE)
    planner = _auto(verify, growth)
    found = _simulate(planner, quality, claimed, verify, tokens * requests, requests, growth)
    assert found > 0.97 * requests / verify.at(requests)


def test_the_growth_of_a_draft_is_what_a_second_request_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    class Slow:
        max_depth = 3

        def begin(self, slot: int, prompt: Sequence[int]) -> None:
            assert list(prompt) == [0] * 4

        def observe(self, slot: int, tokens: Sequence[int], features: Any) -> None:
            assert len(tokens) == 3

        def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Any]:
            asked.append(len(slots))
            return []

    def timed(step: Any, sizes: Sequence[int], *, repeats: int) -> StepCosts:
        for size in sizes:
            step(size)
        return StepCosts(sizes, [2.0, 3.0])

    monkeypatch.setattr(measure, "measure_steps", timed)
    assert measure.measured_growth(Slow(), None, [0] * 4) == 0.5
    assert asked == [1, 2]
