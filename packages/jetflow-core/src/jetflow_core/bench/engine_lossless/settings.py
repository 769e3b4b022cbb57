"""What the lossless check of the fast engine is made of, and what it refuses before any work."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from jetflow_core.bench.checks import check_at_least, check_device
from jetflow_core.bench.engine.settings import AUTO, MOST_PREFILL
from jetflow_core.limits import MAX_BUDGET, MAX_SLOTS

EXACT, ROUNDING, SAMPLING = "exact", "rounding", "sampling"
PARTS = (EXACT, ROUNDING, SAMPLING)
DRAFTERS = ("head", "wrong", "random", "oracle")
_FREE = ("budgets", "drafters", "parts", "rounds", "processes", "threads")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineLosslessSettings:
    """What is run and compared.

    Raises:
        ValueError: a value is out of range; named.
    """

    prompts: tuple[str, ...] = ("builtin",)
    limit: int | None = None
    seed: int = 0
    target: str | None = None
    """Folder or hub name; None: the embedded one."""
    head: str | None = None
    """Folder; None: the default one of the embedded target."""
    device: str = "cpu"
    parts: tuple[str, ...] = PARTS
    drafters: tuple[str, ...] = DRAFTERS
    budgets: tuple[int, ...] = (1, 16, 64, 256, AUTO)
    batch: int = 16
    """Requests held at once; every one is decoded alone as well."""
    page: int = 16
    """Rows of a page: the fewest that kernels take, so that memory runs out by little."""
    prefill_rows: int = 64
    max_new_tokens: int = 64
    rounds: int = 20_000
    """Of the sampling part."""
    processes: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        check_device(self.device)
        for name in ("max_new_tokens", "page", "prefill_rows", "rounds", "processes", "threads"):
            check_at_least(name, getattr(self, name), 1)
        for name, least, most in (
            ("batch", 2, MAX_SLOTS), ("prefill_rows", 1, MOST_PREFILL),
        ):  # fmt: skip
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} {getattr(self, name)} is out of range: {least} to {most}")
        for budget in self.budgets:
            if budget != AUTO and not 1 <= budget <= MAX_BUDGET:
                raise ValueError(f"budget {budget} is out of range: 1 to {MAX_BUDGET}")
        for name in ("parts", "drafters", "budgets"):
            if not getattr(self, name):
                raise ValueError(f"no {name}: name at least one")
        for name, allowed in (("parts", PARTS), ("drafters", DRAFTERS)):
            for word in getattr(self, name):
                if word not in allowed:
                    raise ValueError(f"{name}: {word!r} is none of {', '.join(allowed)}")

    def same_run(self) -> dict[str, Any]:
        """What two runs must have in common so that one can go on with the other's parts."""
        return {name: value for name, value in asdict(self).items() if name not in _FREE}
