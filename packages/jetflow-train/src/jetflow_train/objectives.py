"""What a loss row costs, and its gradient by the student's logits, in closed form.

``p`` is the target's distribution, ``q`` the head's, both at the loss's temperature. A closed form
needs no graph over the vocabulary, so a chunk of rows is the most that is ever in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

ObjectiveName = Literal["forward_kl", "reverse_kl", "cross_entropy", "total_variation"]
OBJECTIVES: tuple[ObjectiveName, ...] = get_args(ObjectiveName)
# From a fresh head these two have nearly no gradient where the head is wrong.
NEEDS_A_TRAINED_HEAD: tuple[ObjectiveName, ...] = ("reverse_kl", "total_variation")

RowLoss = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps log q ``[n, V]``, log p ``[n, V]`` and text tokens int64 ``[n]`` to the loss of each row
``[n]`` and its gradient by the logits of q ``[n, V]``."""


@dataclass(frozen=True, slots=True)
class Objective:
    """A loss and its temperature.

    Raises:
        ValueError: on construction, naming the field, its value and what is allowed.
    """

    name: ObjectiveName = "forward_kl"
    temperature: float = 1.0
    """Divides both sides' logits; rows are multiplied by its square, so that gradients of
    different temperatures have one scale."""

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise ValueError(f"loss {self.name!r} is unknown: one of {', '.join(OBJECTIVES)}")
        if not 0.01 <= self.temperature <= 100.0:
            raise ValueError(f"temperature {self.temperature} is out of range: 0.01 to 100")

    def teacher(self, logits: Tensor, index: Tensor, wide: torch.dtype) -> Tensor:
        """Log p ``[n, V]`` of loss rows.

        Args:
            logits: ``[m, V]`` of the target, one row a context token.
            index: int64 ``[n]``; fewer context tokens than loss rows are normalised.
            wide: type of the result.
        """
        mass = (logits.to(wide) / self.temperature).logsumexp(-1)
        return logits[index].to(wide) / self.temperature - mass[index][:, None]

    def rows(self, student: Tensor, logp: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of each row and its gradient by ``student``.

        Args:
            student: logits ``[n, V]`` of the head, in the type the loss is computed in.
            logp: ``[n, V]`` from ``teacher``.
            tokens: int64 ``[n]``, the text's own token at each row's depth.

        Returns:
            ``[n]`` and ``[n, V]``.
        """
        t = self.temperature
        rows, gradient = ROW_LOSSES[self.name]((student / t).log_softmax(-1), logp, tokens)
        return rows * t**2, gradient * t


def forward_kl(logq: Tensor, logp: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """``KL(p || q)``; its gradient is ``q - p``."""
    p = logp.exp()
    return (p * (logp - logq)).sum(-1), logq.exp() - p


def reverse_kl(logq: Tensor, logp: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """``KL(q || p)``; its gradient is ``q (log q - log p - KL)``."""
    q = logq.exp()
    apart = logq - logp
    rows = (q * apart).sum(-1)
    return rows, q * (apart - rows[:, None])


def cross_entropy(logq: Tensor, logp: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """``-log q`` of the text's own token; the target's distribution is not looked at."""
    place = tokens[:, None]
    rows = -logq.gather(-1, place).squeeze(-1)
    return rows, logq.exp().scatter_add(-1, place, torch.full_like(logq[:, :1], -1.0))


def total_variation(logq: Tensor, logp: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """``1 - sum of min(p, q)``: the chance that a drafted sample is refused at temperature 1."""
    p, q = logp.exp(), logq.exp()
    short = (q <= p).to(q.dtype)
    kept = (q * short).sum(-1, keepdim=True)
    return 1.0 - torch.minimum(p, q).sum(-1), q * (kept - short)


ROW_LOSSES: dict[ObjectiveName, RowLoss] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "cross_entropy": cross_entropy,
    "total_variation": total_variation,
}


def reference_rows(
    objective: Objective, student: Tensor, teacher: Tensor, tokens: Tensor
) -> Tensor:
    """The rows of ``Objective.rows`` by torch's own functions; autograd gives their gradient."""
    t = objective.temperature
    student, teacher = student / t, teacher / t
    q, p = student.softmax(-1), teacher.softmax(-1)
    divergence = torch.nn.functional.kl_div
    rows = {
        "forward_kl": lambda: divergence(student.log_softmax(-1), p, reduction="none").sum(-1),
        "reverse_kl": lambda: divergence(teacher.log_softmax(-1), q, reduction="none").sum(-1),
        "cross_entropy": lambda: torch.nn.functional.cross_entropy(
            student, tokens, reduction="none"
        ),
        "total_variation": lambda: 0.5 * (p - q).abs().sum(-1),
    }[objective.name]()
    return rows * t**2
