"""Answers that fall into a loop, and where to cut them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MAX_PERIOD = 40
MIN_REPEATED = 20


def looping_tail(tokens: NDArray[np.integer]) -> int:
    """How many tokens at the end of ``tokens`` only repeat what came before them.

    A tail loops if it is periodic with a period of at most 40 tokens and at least 20 tokens of it
    are repetitions. The first period is no repetition and is not counted.

    Args:
        tokens: ``[N]``.

    Returns:
        The number of repeated tokens; 0 if the tail does not loop.
    """
    longest = 0
    for period in range(1, min(MAX_PERIOD, len(tokens) - 1) + 1):
        differs = np.flatnonzero(tokens[period:] != tokens[:-period])
        equal = len(tokens) - period
        repeated = equal - (int(differs[-1]) + 1 if differs.size else 0)
        longest = max(longest, repeated)
    return longest if longest >= MIN_REPEATED else 0
