"""Scorings: small functions that reshape candidates before a tree is built from them.

A scoring takes candidates and returns candidates of the same tokens with other log-probabilities.
It must keep the contract (nothing above 0, -inf stays -inf); the constructor checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jetflow_tree.candidates import Candidates

Scoring = Callable[[Candidates], Candidates]


def calibrated(temperatures: Sequence[float]) -> Scoring:
    """A scoring that flattens (above 1) or sharpens (below 1) each depth by its temperature.

    Every row of the table is raised to the power 1 / T and normalised again, the rest bucket
    counting as one outcome. An over-confident head wastes budget on deep chains; temperatures
    fitted to measured acceptance correct that.

    Args:
        temperatures: One positive number a depth, the first for depth 1. There may be more than
            the candidates have depths, never fewer.

    Returns:
        The scoring. It raises ValueError when the candidates are deeper than the temperatures.

    Raises:
        ValueError: If a temperature is not a number from 1e-6 to 1e6.
    """
    values = np.array(temperatures, dtype=np.float64)
    if values.ndim != 1 or not ((values >= 1e-6) & (values <= 1e6)).all():
        raise ValueError(f"temperatures must be numbers from 1e-6 to 1e6, got {temperatures!r}")
    return _Calibrated(tuple(values.tolist()))


@dataclass(frozen=True, slots=True)
class _Calibrated:
    """An object and no inner function, so that it can be sent to another process."""

    temperatures: tuple[float, ...]

    def __call__(self, candidates: Candidates) -> Candidates:
        if candidates.depth > len(self.temperatures):
            raise ValueError(
                f"{len(self.temperatures)} temperatures cannot calibrate candidates of depth "
                f"{candidates.depth}"
            )
        scale = np.array(self.temperatures[: candidates.depth])[:, None, None]
        tempered = _temper(candidates, scale)
        # A temperature of 1 must change nothing, not even the last bit.
        return candidates.with_log_probs(np.where(scale == 1.0, candidates.log_probs, tempered))


def depth_discounted(factor: float) -> Scoring:
    """A scoring that multiplies every step's probability by ``factor``.

    A node at depth d then scores log-probability + d * log(factor), so shallow branches gain on
    deep chains.

    Args:
        factor: In (0, 1]; 1 changes nothing.

    Returns:
        The scoring.

    Raises:
        ValueError: If factor is outside (0, 1].
    """
    if not 0.0 < factor <= 1.0:
        raise ValueError(f"factor must be in (0, 1], got {factor}")
    step = float(np.log(factor))

    def scoring(candidates: Candidates) -> Candidates:
        return candidates.with_log_probs(candidates.log_probs + step)

    return scoring


def _temper(candidates: Candidates, scale: NDArray[np.float64]) -> NDArray[np.float64]:
    powered = candidates.log_probs / scale
    rest = candidates.rest()[:, :, None] / scale
    everything = np.concatenate([powered, rest], axis=2)
    peak = everything.max(axis=2, keepdims=True)
    log_mass = peak + np.log(np.exp(everything - peak).sum(axis=2, keepdims=True))
    return np.asarray(np.minimum(powered - log_mass, 0.0), dtype=np.float64)
