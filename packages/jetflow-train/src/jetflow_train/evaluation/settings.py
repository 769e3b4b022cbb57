"""What ``jetflow eval`` is asked for, checked before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jetflow_core.limits import MAX_BUDGET

from jetflow_train.temperatures import check_temperatures


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    """One evaluation.

    Raises:
        ValueError: on construction: a value is out of range or comes twice; named.
    """

    heads: tuple[Path, ...]
    """Folders; the first is the one that others are told beside."""
    prompts: tuple[Path, ...]
    """JSONL files, each a set of its own."""
    target: Path | None = None
    """A folder; None: the embedded target."""
    limit: int = 128
    """Prompts taken from each file, the first ones."""
    seed: int = 0
    """Of the sampled answers."""
    temperatures: tuple[float, ...] = (0.0, 0.7, 1.0)
    budgets: tuple[int, ...] = (16, 64, 256)
    """Rows of a tree, root included."""
    max_new_tokens: int = 128
    second_pass: bool = False
    """Also trees of a second pass of the head."""
    workers: int = 1
    """Processes that walk."""

    def __post_init__(self) -> None:
        for name in ("heads", "prompts", "budgets"):
            if not getattr(self, name):
                raise ValueError(f"{name} are missing: give at least one")
        check_temperatures(self.temperatures)
        for budget in self.budgets:
            if not 1 <= budget <= MAX_BUDGET:
                raise ValueError(f"budget {budget} is out of range: 1 to {MAX_BUDGET}")
        for name in ("limit", "max_new_tokens", "workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is out of range: at least 1")
        if self.seed < 0:
            raise ValueError(f"seed {self.seed} is out of range: at least 0")
        for budget in self.budgets:
            if self.budgets.count(budget) > 1:
                raise ValueError(f"budget {budget} comes twice")
        head_names(self.heads)


def head_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """How reports call the heads: by folder, and with its parent's name where two are alike.

    A training run calls every head it writes ``head``.

    Raises:
        ValueError: two are still alike.
    """
    places = [folder.resolve() for folder in folders]
    names = [place.name for place in places]
    longer = [
        f"{place.parent.name}/{name}" if names.count(name) > 1 else name
        for place, name in zip(places, names, strict=True)
    ]
    for name in longer:
        if longer.count(name) > 1:
            raise ValueError(f"two heads are called {name!r}; rename one of the folders")
    return tuple(longer)
