"""Answers that fall into a loop, and where to cut them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 40
MIN_REPEATED = 20


def looping_tails(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens at the end of each row only repeat what came before them.

    A tail loops if it is periodic with a period of at most 40 tokens and at least 20 tokens of it
    are repetitions. The first period is no repetition and is not counted.

    Args:
        tokens: ``[N, L]``.

    Returns:
        ``[N]``, the number of repeated tokens; 0 where the tail does not loop.
    """
    longest = np.zeros(tokens.shape[0], dtype=np.int64)
    for period in range(1, min(MAX_PERIOD, tokens.shape[1] - 1) + 1):
        differs = tokens[:, :-period] != tokens[:, period:]
        backwards = differs[:, ::-1]
        repeated = np.where(backwards.any(1), backwards.argmax(1), differs.shape[1])
        longest = np.maximum(longest, repeated)
    return np.where(longest >= MIN_REPEATED, longest, 0)
