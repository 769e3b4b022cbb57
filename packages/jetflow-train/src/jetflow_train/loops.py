"""Answers that fall into a loop, and where to cut them."""

from __future__ import annotations

import numpy as np
from jetflow_core.reports.loops import FEWEST_REPEATED, LONGEST_PERIOD
from numpy.typing import NDArray


def looping_tails(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens at the end of each row only repeat what came before them.

    The definition is that of ``jetflow_core.reports.loops.looping_tail``, for many rows at once.

    Args:
        tokens: ``[N, L]``.

    Returns:
        ``[N]``, the number of repeated tokens; 0 where the tail does not loop.
    """
    longest = np.zeros(tokens.shape[0], dtype=np.int64)
    for period in range(1, min(LONGEST_PERIOD, tokens.shape[1] - 1) + 1):
        differs = tokens[:, :-period] != tokens[:, period:]
        backwards = differs[:, ::-1]
        repeated = np.where(backwards.any(1), backwards.argmax(1), differs.shape[1])
        longest = np.maximum(longest, repeated)
    return np.where(longest >= FEWEST_REPEATED, longest, 0)
