"""Shows where the CUDA kernel's time goes: ``python -m jetflow_kernels.attention.stages --out F``.

One process, one card. The kernel is built to note when each program reaches its phases (``Phase``
of ``k2/clock.cuh``). A CUDA graph of as many calls as a model has layers, each with pools of its
own, is replayed; of its second half, when launches follow each other as in a model, the report
holds the median and the maximum of each phase over all programs, in cycles since the program's
first instruction, and the time from launch to launch. Noting takes time itself: what a launch takes
without it is told by ``attention.bench``.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels import timing
from jetflow_kernels.arguments import (
    TreeAttentionArguments,
    check_kernel_limits,
    check_layout,
)
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.bench import Case, make_layers
from jetflow_kernels.attention.k2.limits import MOST_POSITIONS, PAGE_STEP, unavailable

NANOSECONDS = ("DEVICE_BEGIN", "DEVICE_END")
"""Phases that are told in nanoseconds of the device; all others are cycles but the last."""
START, WHERE = "BEGIN", "MULTIPROCESSOR"
REPLAYS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """When the programs of some launches reached a phase, in cycles since their beginning."""

    phase: str
    median: float
    maximum: int
    programs: int
    """That reached it, of all launches together."""


def stages_of(stamps: Tensor, names: Sequence[str]) -> list[Stage]:
    """The phases that any program reached, in their order.

    Args:
        stamps: [launches, programs, phases] int64 on the CPU; 0 where a phase was not reached.
        names: of the phases.
    """
    begun = stamps[..., names.index(START)]
    found = []
    for index, name in enumerate(names):
        noted = stamps[..., index]
        reached = noted != 0
        if name in (*NANOSECONDS, WHERE) or not reached.any():
            continue
        cycles = (noted - begun)[reached].tolist()
        found.append(
            Stage(
                phase=name,
                median=statistics.median(cycles),
                maximum=max(cycles),
                programs=len(cycles),
            )
        )
    return found


def launches_us(stamps: Tensor, names: Sequence[str]) -> list[float]:
    """Microseconds from the first program of each launch to that of the next one.

    Args:
        stamps: [launches, programs, phases] int64 on the CPU, of launches behind one another.
        names: of the phases.
    """
    first = stamps[..., names.index(NANOSECONDS[0])].amin(1)
    return (first.diff().double() / 1e3).tolist()


def measure(case: Case, *, cluster: int | None, early: bool, swift: bool) -> dict[str, Any]:
    """Replays the layers of a case and reads the stamps of the second half.

    Args:
        case: of at least four layers.
        cluster: programs that share a tile; None: as the kernel chooses.
        early: whether programs may be placed before the kernel ahead has ended.
        swift: as in ``launch.launch``.

    Returns:
        The case, how it was started, ``launch_us`` and ``stages``.

    Raises:
        BuildError: the kernel could not be built.
        DriverError: the CUDA driver refused.
    """
    # Triton, which these import, is an extra.
    from jetflow_kernels.attention.k2 import clock, launch

    names = clock.phases()
    calls, stamps, held = [], [], []
    for given in make_layers(case, torch.bfloat16):
        arguments = TreeAttentionArguments(**given)
        check_layout(arguments, out=None, lse=None)
        check_kernel_limits(arguments)
        out = torch.empty_like(arguments.q)
        scale = case.dim**-0.5
        call = launch.prepare(
            *(arguments,), out=out, lse=None, scale=scale, cluster=cluster, swift=swift
        )
        stamps.append(clock.room(call))
        calls.append(call)
        held.append((arguments, out))
    replay = timing.capture(
        [
            partial(clock.start, call, room, early=early)
            for call, room in zip(calls, stamps, strict=True)
        ]
    )
    for _ in range(REPLAYS):
        replay()
    torch.cuda.synchronize()
    read = torch.stack([room.cpu() for room in stamps[case.layers // 2 :]])
    first = calls[0]
    return {
        **asdict(case),
        "kernel": first.variant.name,
        "programs": first.programs,
        "cluster": first.cluster,
        "early": early,
        "launch_us": statistics.median(launches_us(read, names)),
        "stages": [asdict(stage) for stage in stages_of(read, names)],
    }


def table(result: dict[str, Any]) -> str:
    """One result for people."""
    lines = [
        f"B {result['requests']} P {result['prefix']} N {result['rows']} page {result['page']}: "
        f"{result['kernel']}, {result['programs']} programs in clusters of {result['cluster']}, "
        f"{'early' if result['early'] else 'not early'}, launch to launch "
        f"{result['launch_us']:.2f} us",
        f"{'phase':<16}{'median':>10}{'maximum':>10}{'programs':>10}  (cycles since BEGIN)",
    ]
    lines += [
        f"{stage['phase']:<16}{stage['median']:>10.0f}{stage['maximum']:>10}{stage['programs']:>10}"
        for stage in result["stages"]
    ]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jetflow_kernels.attention.stages", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rows", type=int, nargs="+", default=[64], help="of a tree, up to 256")
    parser.add_argument("--prefix", type=int, nargs="+", default=[1024])
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--page", type=int, default=128, help="rows, a multiple of 8 up to 256")
    parser.add_argument("--layers", type=int, default=12, help="launches of a graph, at least 4")
    parser.add_argument(
        "--cluster", type=int, help="programs that share a tile; as the kernel chooses if left out"
    )
    parser.add_argument(
        "--swift", action="store_true", help="the swift kernel too, which no call chooses"
    )
    return parser


def _refuse(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Ends the program where a number is outside of what the kernel takes."""
    allowed = {
        "rows": (1, plan.WORD_BITS * plan.MAX_WORDS),
        "prefix": (0, MOST_POSITIONS // 2),
        "requests": (1, plan.MAX_REQUESTS),
        "page": plan.PAGES,
        "layers": (4, 1000),
        "cluster": (1, plan.MAX_CLUSTER),
    }
    for name, (least, most) in allowed.items():
        given = getattr(options, name)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and not least <= value <= most:
                parser.error(f"--{name} must be from {least} to {most}, got {value}")
    if options.page % PAGE_STEP:
        parser.error(f"--page must be a multiple of {PAGE_STEP}, got {options.page}")


def main(argv: list[str] | None = None) -> None:
    """Measures each case, early placed and not, and writes one JSON file.

    Raises:
        SystemExit: wrong arguments, or no device that runs the kernel.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    _refuse(parser, options)
    refused = unavailable(torch.device("cuda", 0)) if torch.cuda.is_available() else "no device"
    if refused is not None:
        parser.error(f"needs a card that runs the CUDA kernel: {refused}")
    results: list[dict[str, Any]] = []
    torch.manual_seed(0)
    kernels = (False, True) if options.swift else (False,)
    grid = product(options.rows, options.prefix, kernels, (True, False))
    for rows, prefix, swift, early in grid:
        case = Case(
            rows=rows, prefix=prefix, requests=options.requests, page=options.page,
            layers=options.layers,
        )  # fmt: skip
        results.append(measure(case, cluster=options.cluster, early=early, swift=swift))
        print(table(results[-1]), flush=True)
        timing.write_json(options.out, {**timing.environment(), "results": results})


if __name__ == "__main__":
    main()
