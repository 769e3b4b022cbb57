"""The candidates: what a head may hand over, and what is refused by name."""

import numpy as np
import pytest
from jetflow_tree import BestFirst, Candidates

TOKENS = np.array([[5, 9], [3, 4]])
LOG_PROBS = np.log([[0.6, 0.3], [0.5, 0.5]])


def test_marginal_and_conditioned_shapes():
    marginal = Candidates.marginal(TOKENS, LOG_PROBS)
    assert (marginal.depth, marginal.width, marginal.path_conditioned) == (2, 2, False)
    assert marginal.log_probs.shape == (2, 1, 2)
    conditioned = Candidates(TOKENS, np.repeat(marginal.log_probs, 2, axis=1))
    assert conditioned.path_conditioned


def test_arrays_are_copies_and_read_only():
    table = LOG_PROBS.copy()
    candidates = Candidates.marginal(TOKENS, table)
    table[0, 0] = -9.0
    assert candidates.log_probs[0, 0, 0] == LOG_PROBS[0, 0]
    with pytest.raises(ValueError, match="read-only"):
        candidates.log_probs[0, 0, 0] = 0.0


def test_rest_is_the_missing_mass():
    rest = Candidates.marginal(TOKENS, LOG_PROBS).rest()
    assert rest.shape == (2, 1)
    assert rest[0, 0] == pytest.approx(np.log(0.1))
    assert rest[1, 0] < -30.0


def test_rest_of_what_is_no_distribution_is_an_error():
    with pytest.raises(ValueError, match=r"log_probs\[0, 0\] sum to 1\.8"):
        Candidates.marginal([[1, 2]], np.log([[0.9, 0.9]])).rest()


def test_truncate_names_both_depths():
    candidates = Candidates.marginal(TOKENS, LOG_PROBS)
    assert candidates.truncate(1).depth == 1
    assert candidates.truncate(0).depth == 0
    deep = Candidates.marginal([[1], [2], [3]], np.full((3, 1), -0.1))
    with pytest.raises(ValueError, match=r"asked for depth 5, but the candidates have 0\.\.3"):
        deep.truncate(5)
    with pytest.raises(ValueError, match="-1"):
        deep.truncate(-1)


@pytest.mark.parametrize(
    ("tokens", "log_probs", "message"),
    [
        ([[5, 9]], [[[-0.1, np.nan]]], r"log_probs\[0, 0, 1\] must be a number at most 0, got nan"),
        ([[5, 9]], [[[-0.1, 1e-9]]], r"log_probs\[0, 0, 1\] must be a number at most 0, got 1e-09"),
        ([[5, 9]], [[[np.inf, -1.0]]], r"at most 0, got inf"),
        ([[5, 5]], [[[-0.1, -3.0]]], "token 5 occurs twice at depth 1"),
        ([[1, 2], [9, 9]], [[[-1, -1]], [[-1, -1]]], "token 9 occurs twice at depth 2"),
        ([[5, -9]], [[[-0.1, -3.0]]], "got -9"),
        ([[5.0, 9.0]], [[[-0.1, -3.0]]], "integers"),
        ([5, 9], [[[-0.1, -3.0]]], "tokens must be"),
        ([[5, 9]], [[-0.1, -3.0]], "tokens must be"),
        ([[5, 9]], [[[-0.1]]], r"log_probs must be \[1, 1, 2\] or \[1, 2, 2\]"),
        ([[5, 9, 1]], [[[-1, -1, -1], [-1, -1, -1]]], r"got \(1, 2, 3\)"),
        ([[5, 9]], [[[-0.1, -3.0]]] * 2, r"got \(2, 1, 2\)"),
        (np.empty((2, 0), dtype=np.int64), np.empty((2, 1, 0)), "at least 1 candidate"),
    ],
)
def test_bad_tables_are_refused_by_name(tokens, log_probs, message):
    with pytest.raises(ValueError, match=message):
        Candidates(np.asarray(tokens), np.asarray(log_probs, dtype=np.float64))


def test_marginal_refuses_a_conditioned_table():
    with pytest.raises(ValueError, match=r"shape \[D, K\], got \(1, 1, 2\)"):
        Candidates.marginal([[1, 2]], [[[-1.0, -1.0]]])


def test_from_logits_takes_the_likeliest_tokens_in_order():
    logits = np.array([[0.0, 2.0, 1.0, 2.0]])
    candidates = Candidates.from_logits(logits, 3)
    assert candidates.tokens.tolist() == [[1, 3, 2]]
    shares = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert np.exp(candidates.log_probs[0, 0]) == pytest.approx(shares[[1, 3, 2]])


def test_width_above_the_vocabulary_is_clamped():
    candidates = Candidates.from_logits(np.zeros((2, 3)), 16)
    assert candidates.width == 3
    assert BestFirst().build(0, candidates, 64).num_nodes == 1 + 3 + 9


def test_from_logits_keeps_forbidden_tokens_out():
    candidates = Candidates.from_logits([[1.0, -np.inf, 0.0]], 3)
    assert BestFirst().build(0, candidates, 64).tokens.tolist() == [0, 0, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_from_logits_names_the_depth_that_is_not_finite(bad):
    logits = np.zeros((7, 50))
    logits[2, 11] = bad
    with pytest.raises(ValueError, match="depth 3 hold NaN or "):
        Candidates.from_logits(logits, 4)


def test_from_logits_refuses_nonsense():
    with pytest.raises(ValueError, match=r"width must be .* at least 1, got 0"):
        Candidates.from_logits(np.zeros((1, 3)), 0)
    with pytest.raises(ValueError, match=r"width must be a whole number, .* got 1.5"):
        Candidates.from_logits(np.zeros((1, 3)), 1.5)
    with pytest.raises(ValueError, match="shape"):
        Candidates.from_logits(np.zeros(3), 1)
    with pytest.raises(ValueError, match="depth 2 are all -inf"):
        Candidates.from_logits([[0.0, 0.0], [-np.inf, -np.inf]], 1)


def test_extreme_logits_do_not_overflow():
    candidates = Candidates.from_logits([[1e300, 0.0, -1e300]], 3)
    assert candidates.log_probs[0, 0].tolist() == [0.0, -1e300, -2e300]


@pytest.mark.parametrize("level", [-1e9, -1e300, float(np.finfo(np.float32).min), 1e308])
def test_from_logits_at_any_level_is_a_distribution(level: float) -> None:
    found = Candidates.from_logits(np.full((3, 50), level), 4)
    np.testing.assert_allclose(found.log_probs, -np.log(50), rtol=1e-12)
    apart = Candidates.from_logits([[1e308, -1e308, 0.0]], 3)
    assert apart.log_probs[0, 0].tolist() == [0.0, -1e308, -np.inf]
