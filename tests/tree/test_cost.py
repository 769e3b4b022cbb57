"""The cost curve and the size that gives most tokens per second."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_tree import BestFirst, Candidates, CostCurve, Tree, best_size, stop_early

CURVE = CostCurve(rows=(1, 64, 128), seconds=(0.010, 0.012, 0.020))


def test_the_curve_is_linear_between_points_and_goes_on_with_the_last_slope():
    assert [CURVE(n) for n in (1, 64, 128)] == pytest.approx([0.010, 0.012, 0.020])
    assert CURVE(96) == pytest.approx(0.016)
    assert CURVE(192) == pytest.approx(0.028)


def test_outside_the_points_the_curve_never_invents_a_cheaper_pass():
    assert CostCurve(rows=(8, 16), seconds=(1.0, 2.0))(1) == 1.0
    assert CostCurve(rows=(8, 16), seconds=(2.0, 1.0))(999) == 1.0
    assert CostCurve(rows=(8,), seconds=(2.0,))(999) == 2.0


@pytest.mark.parametrize(
    ("rows", "seconds", "message"),
    [
        ((), (), "at least 1 point"),
        ((1, 2), (0.1,), "2 and 1"),
        ((0, 2), (0.1, 0.2), "increase from at least 1"),
        ((2, 2), (0.1, 0.2), "increase from at least 1"),
        ((1, 2), (0.1, 0.0), "positive finite"),
        ((1, 2), (0.1, float("nan")), "positive finite"),
        ((1, 2), (0.1, float("inf")), "positive finite"),
    ],
)
def test_bad_curves_are_refused(rows, seconds, message):
    with pytest.raises(ValueError, match=message):
        CostCurve(rows=rows, seconds=seconds)


def test_a_pass_has_rows():
    with pytest.raises(ValueError, match="at least 1 row, got 0"):
        CURVE(0)


@st.composite
def scores(draw):
    values = draw(st.lists(st.floats(-20.0, 0.0), max_size=40))
    return np.array([0.0, *sorted(values, reverse=True)])


@given(scores(), st.lists(st.floats(0.1, 9.0), min_size=41, max_size=41), st.floats(0.0, 9.0))
def test_the_best_size_is_the_maximum_over_all_sizes(scores, times, fixed):
    def cost(rows):
        return times[rows - 1]

    rates = [np.exp(scores[:n]).sum() / (fixed + cost(n)) for n in range(1, len(scores) + 1)]
    size = best_size(scores, cost, fixed)
    assert rates[size - 1] >= max(rates) * (1 - 1e-12)


def test_a_staircase_is_climbed_past_its_first_dip():
    """17 rows cost a second tile, and filling it pays more than stopping at 16."""
    scores = np.array([0.0] + [-0.05] * 31)

    def stairs(rows):
        return 1.0 + 0.3 * ((rows - 1) // 16)

    rate = [np.exp(scores[:n]).sum() / stairs(n) for n in range(1, 33)]
    assert rate[16] < rate[15] < rate[31]
    assert best_size(scores, stairs, 0.0) == 32


def test_flat_cost_takes_everything_and_steep_cost_only_the_root():
    tree = BestFirst().build(
        9, Candidates.marginal([[1, 2], [3, 4]], np.log([[0.6, 0.4], [0.5, 0.5]])), 7
    )
    assert stop_early(tree, lambda rows: 1.0, 0.0).num_nodes == 7
    assert stop_early(tree, lambda rows: float(rows**3), 0.0).num_nodes == 1
    assert stop_early(tree, lambda rows: float(rows), 1e6).num_nodes == 7


def test_equal_sizes_give_the_smaller():
    assert best_size([0.0, -np.inf], lambda rows: 1.0, 0.0) == 1


@given(st.integers(0, 2**32), st.floats(0.0, 5.0))
def test_stop_early_beats_every_smaller_budget(seed, fixed):
    rng = np.random.default_rng(seed)
    candidates = Candidates.from_logits(3 * rng.standard_normal((4, 20)), 5)
    curve = CostCurve(rows=(1, 8, 9, 32), seconds=(1.0, 1.1, 1.9, 2.5))
    builder = BestFirst()
    best = stop_early(builder.build(0, candidates, 32), curve, fixed)
    rate = best.expected_length() / (fixed + curve(best.num_nodes))
    for budget in range(1, 33):
        tree = builder.build(0, candidates, budget)
        assert tree.expected_length() / (fixed + curve(tree.num_nodes)) <= rate * (1 + 1e-12)


def test_what_makes_no_sense_is_refused():
    tree = Tree.from_parents([0, 1], [-1, 0], [0.0, -1.0])
    with pytest.raises(ValueError, match="fixed must be at least 0 seconds, got -1"):
        stop_early(tree, CURVE, -1.0)
    with pytest.raises(ValueError, match="fixed must be at least 0 seconds, got nan"):
        stop_early(tree, CURVE, float("nan"))
    with pytest.raises(ValueError, match="more than 0 seconds"):
        stop_early(tree, lambda rows: 0.0, 0.0)
    with pytest.raises(ValueError, match="N >= 1"):
        best_size([], CURVE, 0.0)


def test_nan_scores_and_broken_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="scores must be numbers at most 0"):
        best_size([0.0, float("nan")], lambda rows: 1.0, 0.0)
    with pytest.raises(ValueError, match="rows must be whole numbers"):
        CostCurve(rows=(1, float("nan")), seconds=(1.0, 2.0))  # type: ignore[arg-type]
