"""What a sink of figures is, and how figures become plain numbers for those that take no more."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class MetricSink(Protocol):
    """Takes the figures of a run as they come."""

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Keeps ``values`` (numbers, text, and mappings or lists of them) of a step."""

    def close(self) -> None:
        """Brings everything to where it is kept; nothing is written afterwards."""


class Several:
    """Every sink of a run as one.

    Args:
        sinks: each gets everything, in order.
    """

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        self.sinks = tuple(sinks)

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes to all."""
        for sink in self.sinks:
            sink.write(step, values)

    def close(self) -> None:
        """Closes all."""
        for sink in self.sinks:
            sink.close()


def numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The finite numbers in ``values``, those inside of mappings named with slashes.

    The step is left out: a tracker has an axis for it.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and math.isfinite(value) and prefix + name != "step":
            found[prefix + name] = float(value)
    return found
