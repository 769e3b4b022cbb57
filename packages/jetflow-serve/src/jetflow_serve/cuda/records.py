"""What trees did, told by the device one step at a time without waiting for it."""

from __future__ import annotations

import torch
from jetflow_core.rounds import AcceptedBatch
from torch import Tensor

from jetflow_serve.counters import Counters
from jetflow_serve.cuda.lines import Lines


class Records:
    """Counters whose newest step may still be on its way.

    Args:
        counters: where steps are added; as ``sums`` they may lack the newest one.
    """

    def __init__(self, counters: Counters) -> None:
        self.sums = counters
        self._waiting: tuple[Tensor, list[bool], torch.cuda.Event | None] | None = None

    @property
    def counters(self) -> Counters:
        """The sums with the newest step; waits until its walk is done."""
        self.settle()
        return self.sums

    def walked(self, lines: Lines, paths: AcceptedBatch, drafted: list[bool]) -> None:
        """Adds a step's trees.

        Args:
            lines: what was verified.
            paths: what was kept.
            drafted: which of the requests had trees.
        """
        self.settle()
        table = step_table(lines, paths)
        if table.device.type != "cuda":
            self._waiting = (table, drafted, None)
            return
        told = torch.empty(table.shape, dtype=table.dtype, pin_memory=True)
        told.copy_(table, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        self._waiting = (told, drafted, done)

    def settle(self) -> None:
        """Adds the step that is on its way."""
        if self._waiting is None:
            return
        (table, drafted, done), self._waiting = self._waiting, None
        if done is not None:
            done.synchronize()
        for line, tree in zip(table.tolist(), drafted, strict=True):
            if tree:
                rows, depth, accepted, moved, branching = line
                self.sums.counted(
                    rows=rows,
                    depth=depth,
                    accepted=accepted,
                    branching=bool(branching),
                    moved=moved,
                )


def step_table(lines: Lines, paths: AcceptedBatch) -> Tensor:
    """int32 ``[R, 5]``: rows, deepest depth, rows kept, rows moved, whether the tree branches."""
    inside = torch.arange(lines.parents.shape[1], device=lines.parents.device)
    real = inside < lines.nodes[:, None]
    steps = torch.arange(paths.rows.shape[1], device=paths.rows.device)
    columns = (
        lines.nodes,
        lines.depths.masked_fill(~real, 0).amax(1),
        paths.accepted,
        ((paths.rows >= 0) & (paths.rows != steps)).sum(1),
        (real & (lines.parents != inside - 1)).any(1),
    )
    return torch.stack([column.int() for column in columns], dim=1)
