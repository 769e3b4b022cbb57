"""What a run says while it goes on: entries for the metrics, lines for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from jetflow_train.distributed import World
from jetflow_train.feed import Feed
from jetflow_train.guard import StepGuard
from jetflow_train.pace import pace
from jetflow_train.sinks.base import MetricSink
from jetflow_train.state import Progress

Report = Callable[[str], None]

STEPS, EVALUATION = "steps", "evaluation"
"""The kinds of entries: means over the steps since the last one, and an evaluation's results."""


class StepLog:
    """Keeps what steps leave on the device until the host next looks.

    Args:
        world: the processes; the leading one writes.
        feed: names the sequences of a skipped step.
        guard: says which steps were skipped.
        sink: takes the entries.
    """

    def __init__(self, world: World, feed: Feed, guard: StepGuard, sink: MetricSink) -> None:
        self._world, self._feed, self._guard, self._sink = world, feed, guard, sink
        self._waiting: list[Tensor] = []

    def add(self, figures: Tensor) -> None:
        """Base loss, path loss and gradient norm ``[3]`` of a step; no wait for the device."""
        self._waiting.append(figures)

    def flush(self, progress: Progress, share: float, report: Report) -> None:
        """Write an entry over the steps since the last one; nothing where there are none.

        Raises:
            DivergedError: several steps in a row had no finite gradient.
        """
        if not self._waiting:
            return
        rows = torch.stack(self._waiting).tolist()
        self._waiting = []
        steps = list(range(progress.step - len(rows), progress.step))
        broken = self._guard.judge(steps, [row[2] for row in rows])
        good = [row for step, row in zip(steps, rows, strict=True) if step not in broken]
        base, path = self._world.total([_mean(good, 0), _mean(good, 1)])
        rate = progress.loss_rows / progress.seconds if progress.seconds else 0.0
        entry: dict[str, Any] = {
            "kind": STEPS, "step": progress.step, "seconds": round(progress.seconds, 2),
            "base_loss": base, "path_loss": path, "grad_norm": _mean(good, 2), "progress": share,
            "loss_rows_per_second": rate,
        }  # fmt: skip
        if broken:
            named = {step: [r.tolist() for r in self._feed.sequences(step)] for step in broken}
            entry["skipped"] = named
        progress.history.append(entry)
        if not self._world.leads:
            return
        self._sink.write(progress.step, entry)
        report(
            f"step {progress.step} ({100 * share:.0f} %) base {base:.3f} path {path:.3f} "
            f"norm {entry['grad_norm']:.2f}{pace(progress.step, progress.seconds, share, rate)}"
        )
        for step, sequences in entry.get("skipped", {}).items():
            report(f"step {step} skipped, its gradient is not finite; sequences {sequences}")

    def evaluation(self, progress: Progress, values: Mapping[str, float], took: float) -> None:
        """Write an entry of an evaluation's ``values`` that took ``took`` seconds."""
        entry = {
            "kind": EVALUATION, "step": progress.step, "seconds": round(progress.seconds, 2),
            "took_seconds": round(took, 2), "values": dict(values),
        }  # fmt: skip
        self._sink.write(progress.step, entry)


def _mean(rows: list[list[float]], column: int) -> float:
    return sum(row[column] for row in rows) / len(rows) if rows else float("nan")
