"""A step whose gradient is not finite changes nothing, and its texts are named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from jetflow_train.optimizer import HeadOptimizer

MOST_IN_A_ROW = 5


class DivergedError(RuntimeError):
    """Training went wrong beyond a single batch; the last good state on disk is untouched."""


def clip_gradient(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Shortens the whole gradient to at most ``limit``; its norm before that comes back.

    The norm is that of all processes' shares together, and the same number in each of them.
    """
    norm = nn.utils.clip_grad_norm_(parameters, limit)
    whole: Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
    return whole


@dataclass(slots=True)
class StepGuard:
    """Skips broken steps on the device, and judges them when the host next looks.

    The optimizer reads the flag on the device, so no step waits for the host.
    """

    skipped: list[int] = field(default_factory=list)
    """Steps that were skipped, in order."""

    def arm(self, optimizer: HeadOptimizer, norm: Tensor) -> None:
        """Let ``optimizer`` skip its next step if the gradient's ``norm`` is not finite."""
        optimizer.arm(~torch.isfinite(norm))

    def judge(self, steps: list[int], norms: list[float]) -> list[int]:
        """Which of ``steps`` were skipped.

        Raises:
            DivergedError: too many in a row: this is no fault of a single batch.
        """
        broken = [s for s, norm in zip(steps, norms, strict=True) if not _finite(norm)]
        self.skipped += broken
        last = self.skipped[-MOST_IN_A_ROW:]
        if len(last) == MOST_IN_A_ROW and last[-1] - last[0] == MOST_IN_A_ROW - 1:
            raise DivergedError(
                f"{MOST_IN_A_ROW} steps in a row had no finite gradient, the last is {last[-1]}"
            )
        return broken

    def check_learnt(self, steps: int) -> None:
        """Refuses a run whose ``steps`` steps were all skipped.

        Raises:
            DivergedError: it learnt nothing.
        """
        if steps and len(self.skipped) == steps:
            raise DivergedError(f"none of the {steps} steps had a finite gradient")


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")
