"""Scorings keep the contract, do nothing at their neutral value, and refuse what fits no table."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_tree import BestFirst, Candidates, calibrated, depth_discounted


@st.composite
def distributions(draw):
    depth, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    parents = draw(st.sampled_from([1, width]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.normal(scale=draw(st.sampled_from([0.1, 1, 10])), size=(depth, parents, width + 1))
    log_probs = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    tokens = np.tile(np.arange(width), (depth, 1))
    return Candidates(tokens, np.minimum(log_probs[:, :, :width], 0.0))


@given(distributions())
def test_neutral_scorings_change_no_bit(candidates):
    for scoring in (calibrated([1.0] * 9), depth_discounted(1.0)):
        assert (scoring(candidates).log_probs == candidates.log_probs).all()


@given(distributions(), st.floats(0.05, 20.0))
def test_calibrated_rows_are_powers_normalised_with_the_rest(candidates, temperature):
    scored = calibrated([temperature] * candidates.depth)(candidates)
    powers = np.exp(candidates.log_probs / temperature)
    rest = np.exp(candidates.rest() / temperature)[:, :, None]
    expected = powers / (powers.sum(axis=2, keepdims=True) + rest)
    assert np.exp(scored.log_probs) == pytest.approx(expected, abs=1e-9)
    assert (np.exp(scored.log_probs).sum(axis=2) <= 1.0 + 1e-9).all()


def test_each_depth_has_its_temperature():
    flat = Candidates.marginal([[1, 2], [1, 2]], np.log([[0.8, 0.2], [0.8, 0.2]]))
    scored = calibrated([1.0, 2.0])(flat)
    assert scored.log_probs[0, 0, 0] == flat.log_probs[0, 0, 0]
    assert np.exp(scored.log_probs[1, 0]) == pytest.approx([2 / 3, 1 / 3])


@given(distributions(), st.floats(0.01, 1.0))
def test_a_discount_lowers_a_path_by_its_depth(candidates, factor):
    plain = BestFirst().build(9, candidates, 10_000)
    scored = BestFirst(scoring=depth_discounted(factor)).build(9, candidates, 10_000)

    def scores(tree):
        return {
            tuple(tree.tokens[list(tree.path(row))].tolist()): float(tree.scores[row])
            for row in range(tree.num_nodes)
        }

    discounted = scores(scored)
    for path, score in scores(plain).items():
        assert discounted[path] == pytest.approx(score + len(path) * np.log(factor), abs=1e-9)


def test_impossible_stays_impossible():
    never = Candidates.marginal([[1, 2]], [[-0.5, -np.inf]])
    for scoring in (calibrated([3.0]), depth_discounted(0.5)):
        assert scoring(never).log_probs[0, 0, 1] == -np.inf
    nothing = Candidates.marginal([[1, 2]], [[-np.inf, -np.inf]])
    assert np.isneginf(calibrated([3.0])(nothing).log_probs).all()


def test_a_flatter_calibration_widens_the_tree():
    sharp = Candidates.marginal(
        np.tile(np.arange(4), (8, 1)), np.tile(np.log([0.9, 0.05, 0.03, 0.02]), (8, 1))
    )
    plain = BestFirst().build(9, sharp, 16)
    wide = BestFirst(scoring=calibrated([3.0] * 8)).build(9, sharp, 16)
    assert len(wide.children(0)) > len(plain.children(0))


def test_too_few_temperatures_are_refused_with_both_numbers():
    three = Candidates.marginal([[1], [2], [3]], np.full((3, 1), -0.1))
    with pytest.raises(ValueError, match="2 temperatures cannot calibrate candidates of depth 3"):
        calibrated([1.0, 2.0])(three)


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-310, float("nan"), float("inf")])
def test_bad_temperatures_are_refused(bad):
    with pytest.raises(ValueError, match="temperatures must be numbers from"):
        calibrated([1.0, bad])


@pytest.mark.parametrize("bad", [0.0, 1.5, -0.5, float("nan")])
def test_bad_factors_are_refused(bad):
    with pytest.raises(ValueError, match=r"factor must be in \(0, 1\]"):
        depth_discounted(bad)
