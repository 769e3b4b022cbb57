"""Sizes of a runner, and what a row of its cache takes."""

from __future__ import annotations

from dataclasses import dataclass

from jetflow_core.rounds.draft import RoundDrafter
from jetflow_core.stacks import DecoderStack


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerSettings:
    """Sizes of a runner.

    Raises:
        ValueError: one is out of range.
    """

    memory: int
    """Bytes for the pages of target and drafter together."""
    slots: int = 8
    """Requests held at once."""
    page: int = 64
    """Rows of a page."""
    prefill_rows: int = 256
    """Rows of one prompt that are read between two rounds, 1 to 256."""
    prompt_rows: int = 1024
    """Rows of all prompts together that are read between two rounds, in one pass."""

    def __post_init__(self) -> None:
        for name in ("memory", "slots", "page", "prefill_rows", "prompt_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.prompt_rows < self.prefill_rows:
            raise ValueError(
                f"prompt_rows {self.prompt_rows} is below prefill_rows {self.prefill_rows}, the "
                "rows of one prompt"
            )


def row_bytes(stack: DecoderStack, drafter: RoundDrafter) -> int:
    """Bytes of one row in all pools of a target and its drafter."""
    shape = stack.shape
    row = shape.num_kv_heads * shape.head_dim * stack.dtype.itemsize
    return 2 * shape.num_layers * row + drafter.row_bytes
