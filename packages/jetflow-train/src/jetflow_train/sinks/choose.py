"""The sinks of a run by their names; a package that is missing is refused before any work."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jetflow_train.sinks.base import MetricSink, Several
from jetflow_train.sinks.jsonl import JsonLines

TrackerName = Literal["tensorboard", "trackio"]
METRICS = "metrics.jsonl"


def check_trackers(names: Sequence[TrackerName]) -> None:
    """Looks whether the package of each tracker is installed, without importing it.

    Raises:
        ValueError: one is not; with the extra that brings it.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"--track {name} needs the package {name}, which is not installed: "
                f"install jetflow-train[{name}]"
            )


def open_sinks(out: Path, names: Sequence[TrackerName] = ()) -> MetricSink:
    """The metrics file of the run in ``out`` and its trackers as one sink.

    Raises:
        ValueError: see ``check_trackers``, and ``sinks.trackio``.
    """
    check_trackers(names)
    sinks: list[MetricSink] = [JsonLines(out / METRICS)]
    for name in dict.fromkeys(names):
        if name == "tensorboard":
            from jetflow_train.sinks.tensorboard import TensorBoard

            sinks.append(TensorBoard(out / "tensorboard"))
        else:
            from jetflow_train.sinks.trackio import Trackio

            sinks.append(Trackio(out.resolve().name))
    return Several(sinks)
