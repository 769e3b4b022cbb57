"""What is asked of offline decoding, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One prompt to be answered once.

    Raises:
        ValueError: on construction: an empty prompt, or a temperature out of range.
    """

    number: int
    """Told with the answer."""
    prompt: NDArray[np.int64]
    temperature: float
    """0 is greedy."""
    uniforms: NDArray[np.float32]
    """A random number in [0, 1) for each token of the longest answer; greedy jobs read none."""

    def __post_init__(self) -> None:
        if len(self.prompt) < 1:
            raise ValueError(f"job {self.number} has an empty prompt, at least 1 token is needed")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(
                f"job {self.number} has temperature {self.temperature}, it must be >= 0 and finite"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the target wrote."""

    number: int
    """Of the job."""
    tokens: NDArray[np.int64]
    """New tokens, the stop token included where one was written."""
    finished: bool
    """A stop token was written; otherwise the answer was cut at its longest length."""
