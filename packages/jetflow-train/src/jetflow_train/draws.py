"""Random numbers that depend on what they are for, never on what was drawn before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

QUESTION_ORDER, ANSWER_TOKENS, EPOCH_ORDER, ANCHORS, CALIBRATION, PREFIX_FILLS = range(6)
"""What a generator is for; two purposes never share numbers."""


def generator(purpose: int, seed: int, number: int) -> np.random.Generator:
    """The generator of item ``number`` for one purpose.

    Args:
        purpose: one of the constants of this module.
        seed: the run's seed, >= 0.
        number: of the item (a block of questions, an epoch, a row of a step), >= 0.
    """
    # As a list numpy would take large seeds through float64, and several would be one.
    key = np.array([seed, number], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=[0, 0, 0, purpose], key=key))


class AnswerDraws:
    """The random numbers of answers, drawn for blocks of questions that follow one another.

    A generator costs as much as the numbers of many answers, so one serves a block. Which block
    that is, and where an answer's numbers stand in it, depend on the question's number and the
    token's place alone.

    Args:
        seed: the run's, >= 0.
        places: numbers of an answer.
    """

    BLOCK = 64

    def __init__(self, seed: int, places: int) -> None:
        self._seed, self._places = seed, places
        self._block, self._drawn = -1, np.zeros((0, 0), dtype=np.float32)

    def of(self, number: int) -> NDArray[np.float32]:
        """Numbers ``[places]`` in [0, 1) of question ``number``, >= 0."""
        block, row = divmod(number, self.BLOCK)
        if block != self._block:
            draw = generator(ANSWER_TOKENS, self._seed, block)
            # Place by place, so that longer answers only draw more.
            drawn = draw.random((self._places, self.BLOCK), dtype=np.float32)
            self._block, self._drawn = block, np.ascontiguousarray(drawn.T)
        return self._drawn[row]
