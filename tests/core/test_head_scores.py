"""How sharply a head's scores are read, by the temperature of the request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.head.config import HeadConfig, HeadConfigError
from jetflow_core.head.scores import head_scoring, score_temperature
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from jetflow_tree import Candidates

PROMPT = (3, 14, 15, 92, 65, 35)
PAIRS = ((0.0, 0.5), (1.0, 1.5))


@pytest.fixture
def config(head_for_tiny_target: Callable[..., Any]) -> HeadConfig:
    found: HeadConfig = head_for_tiny_target().config
    return found


def test_between_fitted_temperatures_it_runs_straight_and_stays_outside(config: HeadConfig) -> None:
    assert score_temperature(config, 0.3) == 1.0
    fitted = replace(config, score_temperatures=PAIRS)
    read = [score_temperature(fitted, asked) for asked in (0.0, 0.25, 0.5, 1.0, 2.0)]
    assert read == pytest.approx([0.5, 0.75, 1.0, 1.5, 1.5])
    assert head_scoring(fitted, 0.5) is None
    assert head_scoring(config, 0.0) is None


def test_scores_are_divided_and_normalised_again(config: HeadConfig) -> None:
    scoring = head_scoring(replace(config, score_temperatures=PAIRS), 0.0)
    assert scoring is not None
    chances = np.array([[0.6, 0.3]])
    read = scoring(Candidates.marginal(np.array([[4, 9]]), np.log(chances)))
    squares = np.array([0.6, 0.3, 0.1]) ** 2
    assert np.exp(read.log_probs[0, 0]) == pytest.approx(squares[:2] / squares.sum())


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (((0.5, 1.0), (0.5, 0.9)), "rise by the request's temperature"),
        (((0.0, 0.0),), "each score's must be a number 0.01..100.0, got 0.0"),
        (((-1.0, 1.0),), "each request's must be a number 0.0..100.0, got -1.0"),
        (((0.0, "a"),), "each score's must be a number"),
        (((0.0,),), "must be pairs"),
        ([(0.0, 1.0)], "must be pairs"),
    ],
)
def test_impossible_pairs_are_refused(config: HeadConfig, pairs: Any, message: str) -> None:
    with pytest.raises(HeadConfigError, match=message):
        replace(config, score_temperatures=pairs)


@pytest.mark.parametrize("budget", [12, "auto"])
def test_the_engine_reads_them_and_the_text_stays(
    tiny_target: Target, head_for_tiny_target: Callable[..., Any], budget: Any
) -> None:
    params = SamplingParams(max_new_tokens=12)
    taken = []
    for pairs in ((), ((0.0, 0.2),)):
        engine = Engine(tiny_target, head_for_tiny_target(score_temperatures=pairs))
        taken.append(engine.generate(PROMPT, params, TreeOptions(budget=budget)))
    plain, sharp = taken
    assert sharp.tokens == plain.tokens
    if budget != "auto":
        first, other = (each.rounds[0].tree for each in taken)
        assert not np.isclose(other.scores[1:], first.scores[1:]).any()
