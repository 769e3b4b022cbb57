"""Acceptance is counted once, by one formula that is printed beside the number."""

import json

import numpy as np
import pytest
from jetflow_tree import TAU_FORMULA, AcceptanceStats, Accepted, Tree, walk

CHAIN = Tree.from_parents([0, 1, 2, 3, 4], [-1, 0, 1, 2, 3], [0.0, -0.1, -0.2, -0.3, -0.4])


def test_only_what_comes_before_the_first_rejection_is_accepted():
    stats = AcceptanceStats()
    stats.add(CHAIN, walk(CHAIN, [1, 9, 3, 4, 5]))
    assert (stats.accepted, stats.tokens) == (1, 2)
    assert [(tally.offered, tally.kept) for tally in stats.by_depth] == [(1, 1), (1, 0)]


def test_tau_is_accepted_plus_rounds_over_rounds():
    stats = AcceptanceStats()
    for picks in ([1, 2, 3, 4, 5], [9, 0, 0, 0, 0], [1, 2, 9, 0, 0]):
        stats.add(CHAIN, walk(CHAIN, picks))
    assert stats.tau == (stats.accepted + stats.rounds) / stats.rounds == (4 + 0 + 2 + 3) / 3
    assert "(accepted + corrections) / rounds" in TAU_FORMULA
    assert stats.to_dict()["tau_formula"] == TAU_FORMULA


def test_tokens_after_a_stop_do_not_count():
    """Draft, draft, stop, draft, draft and a correction: three tokens were emitted."""
    stats = AcceptanceStats()
    stats.add(CHAIN, walk(CHAIN, [1, 2, 3, 4, 5]), emitted=3)
    assert (stats.tokens, stats.accepted, stats.corrections, stats.tau) == (3, 3, 0, 3.0)
    assert [(tally.offered, tally.kept) for tally in stats.by_depth] == [(1, 1)] * 3


def test_emitted_tokens_are_the_sum_over_the_rounds():
    rng = np.random.default_rng(0)
    stats = AcceptanceStats()
    emitted = 0
    for _ in range(50):
        accepted = walk(CHAIN, np.where(rng.random(5) < 0.7, [1, 2, 3, 4, 5], 9))
        shown = int(rng.integers(0, len(accepted.emitted) + 1))
        emitted += len(accepted.emitted[:shown])
        stats.add(CHAIN, accepted, emitted=shown)
    assert stats.tokens == emitted
    assert stats.tau == emitted / 50


def test_a_round_that_shows_nothing_still_counts_as_a_round():
    stats = AcceptanceStats()
    stats.add(CHAIN, walk(CHAIN, [1, 2, 3, 4, 5]), emitted=0)
    assert (stats.rounds, stats.tokens, stats.tau) == (1, 0, 0.0)


def test_ranks_are_those_of_the_scores_among_siblings():
    tree = Tree.from_parents(
        [0, 5, 6, 7, 8, 9], [-1, 0, 0, 0, 2, 2], [0.0, -2.0, -1.0, -3.0, -4.0, -1.5]
    )
    stats = AcceptanceStats()
    stats.add(tree, walk(tree, [6, 0, 8, 0, 1, 1]))
    assert [(tally.offered, tally.kept) for tally in stats.by_rank] == [(2, 1), (2, 1), (1, 0)]
    stats.add(tree, walk(tree, [7, 0, 0, 1, 1, 1]))
    assert [(tally.offered, tally.kept) for tally in stats.by_rank] == [(3, 1), (3, 1), (2, 1)]


def test_given_ranks_are_used():
    stats = AcceptanceStats()
    stats.add(CHAIN, Accepted((1, 2), (1, 2), 9), ranks=[3, 1])
    assert [tally.kept for tally in stats.by_rank] == [1, 0, 1]


def test_a_leaf_offers_no_deeper_depth():
    stats = AcceptanceStats()
    stats.add(CHAIN, walk(CHAIN, [1, 2, 3, 4, 5]))
    assert len(stats.by_depth) == 4
    assert all(tally.kept == tally.offered == 1 for tally in stats.by_depth)


def test_the_expected_length_is_the_heads_belief():
    stats = AcceptanceStats()
    stats.add(CHAIN, walk(CHAIN, [9, 0, 0, 0, 0]))
    stats.add(Tree.root_only(0), walk(Tree.root_only(0), [3]))
    assert stats.expected_length == pytest.approx((CHAIN.expected_length() + 1.0) / 2)
    assert stats.rows == 6


def test_merging_is_counting_all_rounds_at_once():
    rounds = [[1, 2, 3, 4, 5], [9, 0, 0, 0, 0], [1, 2, 9, 0, 0], [1, 9, 0, 0, 0]]
    whole, left, right = AcceptanceStats(), AcceptanceStats(), AcceptanceStats()
    for number, picks in enumerate(rounds):
        whole.add(CHAIN, walk(CHAIN, picks))
        (left if number == 1 else right).add(CHAIN, walk(CHAIN, picks))
    left.merge(right)
    assert left.to_dict() == whole.to_dict()
    left.by_depth[0].kept += 1
    assert right.to_dict() != left.to_dict()


def test_the_dictionary_is_json():
    stats = AcceptanceStats()
    assert json.loads(json.dumps(stats.to_dict()))["tau"] is None
    stats.add(CHAIN, walk(CHAIN, [1, 2, 9, 0, 0]))
    loaded = json.loads(json.dumps(stats.to_dict()))
    assert loaded["tau"] == 3.0
    assert loaded["by_depth"][2] == {"depth": 3, "offered": 1, "kept": 0}
    assert loaded["by_rank"] == [{"rank": 1, "offered": 3, "kept": 2}]


def test_no_rate_without_rounds():
    for name in ("tau", "expected_length"):
        with pytest.raises(ValueError, match="no round"):
            getattr(AcceptanceStats(), name)


def test_what_does_not_fit_is_refused():
    accepted = walk(CHAIN, [1, 2, 9, 0, 0])
    for emitted in (-1, 4):
        with pytest.raises(ValueError, match=rf"emitted must be in 0\.\.3, got {emitted}"):
            AcceptanceStats().add(CHAIN, accepted, emitted=emitted)
    with pytest.raises(ValueError, match="2 accepted nodes need as many ranks, got 1"):
        AcceptanceStats().add(CHAIN, accepted, ranks=[1])
