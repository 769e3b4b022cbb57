"""How sharply a head's scores are read, by the temperature of the request.

A head learns the target's distribution at temperature 1. A greedy request asks another question:
which token is the best? Its answer is surer than the distribution, so the same scores are sharpened
before a tree grows from them; what is sampled at a temperature lies between. The temperatures that
do this best are fitted on text (``jetflow calibrate``) and stored with the head.
"""

from __future__ import annotations

import numpy as np
from jetflow_tree import Scoring, calibrated

from jetflow_core.head.config import HeadConfig


def score_temperature(config: HeadConfig, temperature: float) -> float:
    """Temperature of the scores of ``config``'s head for a request at ``temperature``.

    Between the fitted requests' temperatures it runs straight, outside of them it stays; 1 for a
    head without any.
    """
    if not config.score_temperatures:
        return 1.0
    asked, fitted = zip(*config.score_temperatures, strict=True)
    return float(np.interp(temperature, asked, fitted))


def head_scoring(config: HeadConfig, temperature: float) -> Scoring | None:
    """The scoring of a request at ``temperature``; None where scores stay as they are."""
    fitted = score_temperature(config, temperature)
    return None if fitted == 1.0 else calibrated([fitted] * config.max_depth)
