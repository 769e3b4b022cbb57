"""How trees are drafted and grown, as a user asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jetflow_tree import BestFirst, TreeBuilder

from jetflow_core.limits import MAX_BUDGET
from jetflow_core.sampling import is_integer


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeOptions:
    """How trees are drafted and grown.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    budget: int | Literal["auto"] = "auto"
    """Rows of one verify pass, root included; 1 is plain decoding; "auto" follows measured cost."""
    depth: int | None = None
    """Deepest depth to draft; None: the head's own."""
    builder: TreeBuilder = field(default_factory=BestFirst)
    """Grows the trees. "auto" needs one whose trees are nested in the budget."""

    def __post_init__(self) -> None:
        if self.budget != "auto" and not (
            is_integer(self.budget) and 1 <= self.budget <= MAX_BUDGET
        ):
            raise ValueError(f"budget {self.budget!r} is out of range: 1 to {MAX_BUDGET}, or auto")
        if self.depth is not None and not (is_integer(self.depth) and self.depth >= 1):
            raise ValueError(f"depth {self.depth!r} is out of range: a whole number, at least 1")
        if self.budget == "auto" and not isinstance(self.builder, BestFirst):
            raise ValueError("budget auto needs the BestFirst builder: its trees are nested")
