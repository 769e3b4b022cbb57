"""How a token is drawn: noise of (seed, place), so that what a rejected branch drew is never seen.

The token after a row is the largest of log-probability plus Gumbel noise, and the noise is keyed by
where in the text that token stands. A tree is fixed before anything is drawn; walking it along
these draws gives exactly the target's distribution, and the same text whatever was drafted.
"""

from __future__ import annotations

import numpy as np
from jetflow_core.noise import gumbel
from torch import Tensor

_WORD = 2**64


def draw(weights: Tensor, seed: int, place: int) -> int:
    """A token from one row.

    Args:
        weights: ``[V]`` logits after temperature and every cut; -inf forbids.
        seed: the request's.
        place: how many tokens stand before the drawn one.

    Returns:
        Its id.
    """
    row = weights.double().cpu().numpy()
    ids = np.flatnonzero(np.isfinite(row))
    noisy = row[ids] + gumbel(seed % _WORD, place, ids)
    return int(ids[int(noisy.argmax())])


class Seeds:
    """The seed of every request: its own, or one drawn when it is first seen.

    Args:
        seed: the engine's, from which seeds of requests without one follow in their order.
    """

    def __init__(self, seed: int) -> None:
        self._stream = np.random.Generator(np.random.Philox(seed % _WORD))
        self._known: dict[str, int] = {}

    def of(self, request: str, asked: int | None) -> int:
        """The seed of ``request``, which asked for ``asked``."""
        if asked is not None:
            return asked
        if request not in self._known:
            self._known[request] = int(self._stream.integers(0, 2**63))
        return self._known[request]

    def forget(self, request: str) -> None:
        """Drops a finished request."""
        self._known.pop(request, None)
