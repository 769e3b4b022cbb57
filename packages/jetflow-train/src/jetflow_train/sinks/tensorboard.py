"""A run in TensorBoard: its event files lie in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jetflow_train.sinks.base import numbers

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Scalars for ``tensorboard --logdir``.

    Args:
        folder: of the event files; made with the first figures.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: SummaryWriter | None = None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Adds every number; in a resumed run they replace those of the same steps."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        for name, value in numbers(values).items():
            self._writer.add_scalar(name, value, step)
        # A run that dies later has lost nothing.
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()
