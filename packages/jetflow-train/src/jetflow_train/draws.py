"""Random numbers that depend on what they are for, never on what was drawn before."""

from __future__ import annotations

import numpy as np

QUESTION_ORDER, ANSWER_TOKENS, EPOCH_ORDER, ANCHORS, CALIBRATION, PREFIX_FILLS = range(6)
"""What a generator is for; two purposes never share numbers."""


def generator(purpose: int, seed: int, number: int) -> np.random.Generator:
    """The generator of item ``number`` for one purpose.

    Args:
        purpose: one of the constants of this module.
        seed: the run's seed, >= 0.
        number: of the item (a question, an epoch, a row of a step), >= 0.
    """
    # As a list numpy would take large seeds through float64, and several would be one.
    key = np.array([seed, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=[0, 0, 0, purpose], key=key))
