"""Noise of a position: a fixed function of (seed, position), the same on every machine."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STEP = 2.0**-52


def uniforms(seed: int, position: int, size: int) -> NDArray[np.float64]:
    """`size` independent numbers strictly between 0 and 1, float64.

    The counter-based generator Philox is keyed by `seed`, and `position` selects one of its
    2**64 streams of 2**130 numbers each, so positions never share noise and nothing has to be
    drawn in order: what a rejected branch drew leaves no trace.
    """
    return _fractions(_raw(seed, position, size))


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """The standard Gumbel number of each token of `ids` (ascending) at `position`, float64.

    It is `-log(-log(u))` with `u` from `uniforms`; which other tokens are asked for changes
    nothing, so noise survives any restriction of the vocabulary.
    """
    if ids.size == 0:
        return np.empty(0)
    raw = _raw(seed, position, int(ids[-1]) + 1)
    return -np.log(-np.log(_fractions(raw[ids])))


def _raw(seed: int, position: int, size: int) -> NDArray[np.uint64]:
    # The raw stream is the part of numpy that is promised never to change.
    generator = np.random.Philox(
        key=np.array([seed, 0], dtype=np.uint64),
        counter=np.array([0, 0, position, 0], dtype=np.uint64),
    )
    return generator.random_raw(size)


def _fractions(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    # 52 bits plus one half are exact in float64, so neither 0 nor 1 can come out.
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * _STEP
