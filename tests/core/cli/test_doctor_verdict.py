"""Verdicts from numbers alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from jetflow_core.doctor.verdict import Agreement, Evidence, judge
from numpy.typing import NDArray

_TEXTS, _ROOTS, _DEPTH = 6, 40, 6


def _agreement(shares: list[float], *, name: str = "as configured", seed: int = 0) -> Agreement:
    """Random hits with ``shares`` by depth; equal seeds give hits that go together."""
    rng = np.random.default_rng(seed)
    luck = rng.random((_TEXTS, _ROOTS, _DEPTH))
    known = np.ones((_ROOTS, _DEPTH), dtype=bool)
    for depth in range(1, _DEPTH):
        known[-depth:, depth] = False
    hits = luck < np.array(shares)
    return Agreement(name, tuple(hits), (known,) * _TEXTS)


_GOOD = [0.75, 0.62, 0.5, 0.4, 0.3, 0.2]
_POOR = [0.1, 0.05, 0.03, 0.02, 0.01, 0.01]


def _less(shares: list[float], factor: float) -> list[float]:
    return [share * factor for share in shares]


def _evidence(
    right: list[float],
    wrong: list[float],
    *,
    stored: list[float] | None = None,
    deviation: float = 0.0,
    seed: int = 0,
) -> Evidence:
    return Evidence(
        right=_agreement(right, seed=seed),
        wrong=(_agreement(wrong, name="taps one layer lower", seed=seed + 1),),
        stored=tuple(stored or ()),
        deviation=deviation,
        rounding=0.15,
        copying=1.2,
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_head_that_keeps_its_promise_is_ok(seed: int) -> None:
    """Also where the texts are harder than the training's, and a wrong wiring is as good."""
    for stored in (None, _GOOD, _less(_GOOD, 1.4)):
        for wrong in (_less(_GOOD, 0.5), _GOOD):
            verdict = judge(_evidence(_GOOD, wrong, stored=stored, seed=seed))
            assert verdict.kind == "ok", verdict


@pytest.mark.parametrize("seed", range(20))
def test_a_better_wrong_wiring_is_a_fault_whatever_is_stored(seed: int) -> None:
    for stored in (None, _less(_GOOD, 0.6), _GOOD):
        verdict = judge(_evidence(_less(_GOOD, 0.6), _GOOD, stored=stored, seed=seed))
        assert verdict.kind == "wiring fault"
        assert "taps one layer lower" in verdict.reasons[0]


def test_far_below_the_stored_agreement_is_a_fault() -> None:
    verdict = judge(_evidence(_less(_GOOD, 0.45), _less(_GOOD, 0.3), stored=_GOOD))
    assert verdict.kind == "wiring fault"
    assert "stored at training time" in verdict.reasons[0]


def test_low_agreement_without_better_explanation_is_a_weak_head() -> None:
    said = judge(_evidence(_POOR, _POOR))
    assert said.kind == "weak head"
    assert "nothing is stored" in said.reasons[1]
    known = judge(_evidence(_POOR, _POOR, stored=_POOR))
    assert known.kind == "weak head"
    assert "as weak at training time" in known.reasons[1]


def test_low_agreement_that_was_stored_high_is_a_fault() -> None:
    assert judge(_evidence(_POOR, _POOR, stored=_GOOD)).kind == "wiring fault"


def test_a_drafter_that_differs_from_the_replay_is_a_fault() -> None:
    assert judge(_evidence(_GOOD, _POOR, deviation=0.15)).kind == "ok"
    verdict = judge(_evidence(_GOOD, _POOR, deviation=0.5))
    assert verdict.kind == "wiring fault"
    assert "50.0%" in verdict.reasons[0]


def test_one_lucky_text_proves_nothing() -> None:
    right = _agreement(_POOR)
    hits = list(right.hits)
    hits[0] = np.ones_like(hits[0])
    lucky = Agreement("root masked", tuple(hits), right.known)
    found = judge(
        Evidence(right=right, wrong=(lucky,), stored=(), deviation=0.0, rounding=0.15, copying=1.2)
    )
    assert found.kind == "weak head"


def test_a_wiring_under_which_less_is_drafted_than_copied_proves_nothing() -> None:
    """Texts that go round in circles reward whatever repeats their last token."""
    found = _evidence([0.0] * 6, [0.33, 0.33, 0.33, 0.3, 0.3, 0.3])
    assert judge(found).kind == "wiring fault"
    verdict = judge(replace(found, copying=4.4))
    assert verdict.kind == "weak head"
    assert "copying from the text itself gives 4.40" in verdict.reasons[0]


def _by_hand(rows: list[list[int]]) -> NDArray[np.bool_]:
    return np.array(rows, dtype=bool)


def test_shares_count_only_what_the_text_reaches() -> None:
    hits = _by_hand([[1, 1, 1], [1, 0, 1], [0, 1, 1]])
    known = _by_hand([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    agreement = Agreement("x", (hits, hits[:1]), (known, known[:1]))
    assert agreement.by_depth == (3 / 4, 2 / 3, 1.0)
    # Leading right tokens: 3, 1, 0, 3.
    assert agreement.chain == 1 + 7 / 4
    assert [share.tolist() for share in agreement.share_by_root()] == [[1.0, 0.5, 0.0], [1.0]]
