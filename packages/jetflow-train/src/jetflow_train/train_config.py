"""Every setting that changes what a run learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jetflow_train.objectives import Objective, ObjectiveName

OptimizerName = Literal["muon", "adamw"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Sizes of a step, the loss, and how fast to learn. The number of processes is no part of it.

    Raises:
        ValueError: on construction, naming the field and its range.
    """

    rows: int = 32
    """Packed rows a step, over all processes and pieces."""
    pieces: int = 1
    """Parts in which a process works through its rows of a step; more need less memory."""
    width: int = 512
    """Tokens of a row."""
    anchors: int = 80
    """Blocks drawn in each row."""
    prefix_fill: float = 0.0
    """Share of the blocks that begin with true tokens; their depths are not learnt from."""
    chunks: int = 4
    """Pieces in which the loss is computed; more need less memory."""
    optimizer: OptimizerName = "muon"
    """Of the layers' matrices; everything else has AdamW."""
    learning_rate: float = 1.5e-3
    path_learning_rate: float = 3e-3
    warmup: float = 0.04
    floor: float = 0.06
    loss: ObjectiveName = "forward_kl"
    loss_temperature: float = 1.0
    gamma: float = 4.0
    """Depth d weighs exp(-(d - 1) / gamma); 0 weighs all depths alike."""
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "pieces", "width", "anchors", "chunks"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value}")
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"optimizer {self.optimizer!r} is unknown: one of {', '.join(OPTIMIZERS)}"
            )
        Objective(self.loss, self.loss_temperature)
        for name in ("learning_rate", "path_learning_rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.gamma < float("inf"):
            raise ValueError(f"gamma must be 0 or above and finite, got {self.gamma}")
        for name in ("warmup", "floor", "prefix_fill"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        self.rows_of_a_piece(1)

    def rows_of_a_piece(self, processes: int) -> int:
        """Packed rows of one forward pass.

        Raises:
            ValueError: the rows cannot be shared out evenly.
        """
        rows, odd = divmod(self.rows, processes * self.pieces)
        if odd or rows % self.chunks or not rows:
            raise ValueError(
                f"rows {self.rows} must be a multiple of processes {processes} x pieces "
                f"{self.pieces} x chunks {self.chunks}"
            )
        return rows
