"""Sizes of a runner, and what a row of its cache takes."""

from __future__ import annotations

from dataclasses import dataclass

from jetflow_core.rounds.draft import RoundDrafter
from jetflow_core.stacks import DecoderStack


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerSettings:
    """Sizes of a runner.

    Raises:
        ValueError: one is below 1.
    """

    memory: int
    """Bytes for the pages of target and drafter together."""
    slots: int = 8
    """Requests held at once."""
    page: int = 64
    """Rows of a page."""
    prefill_rows: int = 256
    """Rows of a prompt that are read between two rounds."""

    def __post_init__(self) -> None:
        for name in ("memory", "slots", "page", "prefill_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def row_bytes(stack: DecoderStack, drafter: RoundDrafter) -> int:
    """Bytes of one row in all pools of a target and its drafter."""
    shape = stack.shape
    row = shape.num_kv_heads * shape.head_dim * stack.dtype.itemsize
    return 2 * shape.num_layers * row + drafter.row_bytes
