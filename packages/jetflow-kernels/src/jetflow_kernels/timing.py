"""Times calls on a GPU: graphs replayed in turns, medians and spread, and a report in one file."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import torch

WARM_UPS = 5
REPLAYS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Microseconds of one call over all replays."""

    median_us: float
    p10_us: float
    p90_us: float


def spread(times: Sequence[float], calls: int = 1) -> Spread:
    """Median and deciles of at least two times, each of ``calls`` calls, for one call."""
    each = [time / calls for time in times]
    cuts = statistics.quantiles(each, n=10)
    return Spread(median_us=statistics.median(each), p10_us=cuts[0], p90_us=cuts[-1])


@dataclass(frozen=True, slots=True)
class Replay:
    """A captured graph with the calls in it, whose tensors must live as long as the graph.

    A graph holds addresses, not tensors: the next capture empties the allocator's cache, and a
    replay would then write to memory that is no longer mapped.
    """

    graph: torch.cuda.CUDAGraph
    calls: tuple[Callable[[], object], ...]

    def __call__(self) -> None:
        """Runs all calls again."""
        self.graph.replay()


def capture(calls: Sequence[Callable[[], object]]) -> Replay:
    """The calls, one after the other, as one CUDA graph; they run once before."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return Replay(graph, tuple(calls))


def time_us(replays: Sequence[Callable[[], None]], count: int) -> list[list[float]]:
    """Microseconds of each of ``count`` rounds of all replays in turn, by events."""
    rounds = []
    for _ in range(count):
        pairs = []
        for replay in replays:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            pairs.append((start, end))
        rounds.append(pairs)
    torch.cuda.synchronize()
    times = [[start.elapsed_time(end) * 1e3 for start, end in pairs] for pairs in rounds]
    return [list(one) for one in zip(*times, strict=True)]


def in_turns(replays: Sequence[Callable[[], None]], calls: int) -> list[Spread]:
    """What one call of each replay takes, warm-ups first, in turns, so that clocks are the same."""
    time_us(replays, WARM_UPS)
    return [spread(times, calls) for times in time_us(replays, REPLAYS)]


def environment() -> dict[str, object]:
    """Device, versions and date, for a report."""
    device = "cpu"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "absent"
    return {
        "device": device,
        "torch": torch.__version__,
        "triton": triton,
        "cuda": torch.version.cuda,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_json(path: Path, value: object) -> None:
    """Writes the whole file or none of it."""
    text = json.dumps(value, indent=1)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)
