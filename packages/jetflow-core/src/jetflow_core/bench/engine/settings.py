"""What an engine benchmark measures, and what it refuses before any work."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jetflow_core.bench.checks import check_at_least, check_device, check_dtype
from jetflow_core.limits import MAX_BUDGET, MAX_SLOTS

PLAIN = 1
"""Budget of plain decoding."""
AUTO = 0
"""Stands for the budget that is chosen every round."""
MOST_DEPTH = 63
MOST_PREFILL = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineSettings:
    """What is measured: random weights of a named shape with imposed acceptance, or a checkpoint.

    Raises:
        ValueError: a value is out of range, or two do not go together; named.
    """

    shape: str | None = None
    """Name of a shape; None: ``target`` is measured."""
    target: str | None = None
    """Folder or hub name of a checkpoint; None without a shape: the embedded one."""
    head: str | None = None
    """Folder of a checkpoint's head; None: the default one of the embedded target."""
    head_layers: int = 5
    path_rank: int = 0
    """Of the random head's path term; 0: it has none."""
    acceptance: str | None = None
    """File that says what rounds keep; with a shape only."""
    trace: str | None = None
    """Set of that file."""
    budgets: tuple[int, ...] = (1, 64, 128, 256)
    """``AUTO`` may be one of them."""
    depth: int | None = None
    """Depths to draft; None: the trace's, or the head's."""
    batch: int = 1
    context: int = 1024
    """Tokens of each random prompt; with a shape only."""
    rounds: int = 64
    """Rounds of a run; with a shape only."""
    prompts: tuple[str, ...] = ("builtin",)
    """With a checkpoint only."""
    limit: int | None = None
    max_new_tokens: int = 128
    """With a checkpoint only."""
    repeats: int = 5
    device: str = "cpu"
    dtype: str | None = None
    bandwidth: float | None = None
    """Bytes a second; None: an H200's on a CUDA device, and no floor elsewhere."""
    flops: float | None = None
    """Likewise."""
    page: int = 64
    prefill_rows: int = 256
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        check_device(self.device)
        for name in (
            "head_layers", "depth", "batch", "context", "rounds", "limit", "max_new_tokens",
            "repeats", "page", "prefill_rows", "threads",
        ):  # fmt: skip
            check_at_least(name, getattr(self, name), 1)
        for name in ("path_rank", "seed"):
            check_at_least(name, getattr(self, name), 0)
        for name, most in (
            ("batch", MAX_SLOTS), ("depth", MOST_DEPTH), ("prefill_rows", MOST_PREFILL),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and value > most:
                raise ValueError(f"{name} {value} is out of range: 1 to {most}")
        self._check_device()
        self._check_budgets()
        self._check_subject()

    @property
    def drafted(self) -> bool:
        """Whether anything but plain decoding is measured."""
        return any(budget != PLAIN for budget in self.budgets)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Budgets of more than one row that stay as they are."""
        return tuple(budget for budget in self.budgets if budget not in (PLAIN, AUTO))

    def _check_device(self) -> None:
        for name in ("bandwidth", "flops"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} {value} is out of range: above 0, and finite")
        told = [self.bandwidth is not None, self.flops is not None]
        if any(told) and not all(told) and not self.device.startswith("cuda"):
            raise ValueError(
                f"bandwidth {self.bandwidth} and flops {self.flops}: on {self.device} the floor "
                "needs both"
            )

    def _check_budgets(self) -> None:
        if not self.budgets:
            raise ValueError("no budgets: name at least one")
        for budget in self.budgets:
            if budget != AUTO and not 1 <= budget <= MAX_BUDGET:
                raise ValueError(f"budget {budget} is out of range: 1 to {MAX_BUDGET}")

    def _check_subject(self) -> None:
        if self.shape is None:
            for name in ("acceptance", "trace"):
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} {getattr(self, name)!r} needs a shape: the acceptance of a "
                        "checkpoint is its own and is not imposed"
                    )
            return
        for name in ("target", "head"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} {getattr(self, name)!r} and shape {self.shape!r}: a shape has random "
                    "weights, give one of them"
                )
        if self.drafted and (self.acceptance is None or self.trace is None):
            raise ValueError(
                f"shape {self.shape!r} with trees needs an acceptance file and a trace of it: "
                "random weights accept nothing of their own"
            )
