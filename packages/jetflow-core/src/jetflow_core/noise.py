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
    generator = np.random.Philox(
        key=np.array([seed, 0], dtype=np.uint64),
        counter=np.array([0, 0, position, 0], dtype=np.uint64),
    )
    # The raw stream is the part of numpy that is promised never to change. 52 bits plus one half
    # are exact in float64, so neither 0 nor 1 can come out.
    return ((generator.random_raw(size) >> np.uint64(12)).astype(np.float64) + 0.5) * _STEP


def gumbel(seed: int, position: int, size: int) -> NDArray[np.float64]:
    """`size` independent standard Gumbel numbers, float64: `-log(-log(u))`."""
    return -np.log(-np.log(uniforms(seed, position, size)))
