"""Runs the full lists on a GPU: ``python -m jetflow_kernels.check --out FILE``.

Everything runs in several processes, since most of the time goes into compiling. The file is
written anew while outcomes come in; the exit code is 1 if a check failed. With Triton's interpreter
(``TRITON_INTERPRET=1``) and ``--small`` the same lists run on a CPU with small sizes. ``--eager``
is for tools that look at every access, under which no graph can be captured; the file names the
lists that it leaves out. ``--names`` only prints the lists that would be run, one a line.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import torch

from jetflow_kernels import timing
from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.check import (
    attention_bits,
    attention_graphs,
    attention_prefill,
    attention_swift,
    attention_values,
    products,
    steps,
)
from jetflow_kernels.check.tasks import Outcome, Task, run_all, summary

CHECKED: tuple[Backend, ...] = ("triton", "cuda", "flash")


def all_tasks(backends: Sequence[Backend], *, small: bool) -> list[Task]:
    """Every list for these versions of attention, slow and fast ones in turns."""
    lists = [
        list(part.tasks([backend], small=small))
        for part in (
            attention_bits,
            attention_values,
            attention_graphs,
            attention_prefill,
            attention_swift,
        )
        for backend in backends
    ]
    lists += [list(part.tasks(small=small)) for part in (steps, products)]
    return [task for turn in zip_longest(*lists) for task in turn if task is not None]


def names_of(tasks: Sequence[Task]) -> list[str]:
    """The lists that tasks belong to, in their order, each once."""
    return list(dict.fromkeys(task.list for task in tasks))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jetflow_kernels.check", description=__doc__)
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--out", type=Path, help="JSON file to write")
    does.add_argument("--names", action="store_true", help="only print the names of the lists")
    parser.add_argument("--backends", choices=CHECKED, nargs="+", default=["triton"])
    parser.add_argument("--small", action="store_true", help="small sizes, for the interpreter")
    parser.add_argument(
        "--eager", action="store_true", help="without the lists that capture graphs or measure"
    )
    parser.add_argument("--only", default="", help="lists whose name contains this")
    parser.add_argument("--jobs", type=int, default=8, help="processes")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the lists and writes one JSON file.

    Raises:
        SystemExit: wrong arguments, no device, or a check that failed.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not interpreted and not torch.cuda.is_available():
        parser.error("needs a CUDA device, or TRITON_INTERPRET=1")
    device = "cpu" if interpreted else "cuda"
    named = [t for t in all_tasks(options.backends, small=options.small) if options.only in t.list]
    tasks = [task for task in named if not (options.eager and task.captures)]
    if not tasks:
        parser.error(f"no list that can be run has {options.only!r} in its name")
    if options.names:
        print(*names_of(tasks), sep="\n")
        return
    outcomes: list[Outcome] = []
    head = {
        **timing.environment(), "interpreted": interpreted, "small": options.small,
        "left_out": [name for name in names_of(named) if name not in names_of(tasks)],
    }  # fmt: skip
    start = time.perf_counter()

    def report(outcome: Outcome) -> None:
        outcomes.append(outcome)
        verdict = "ok" if outcome.failed is None else "FAILED"
        print(
            f"{len(outcomes)}/{len(tasks)} {verdict:<6} {outcome.list} | {outcome.backend} "
            f"{outcome.dtype} | {outcome.case} | {outcome.checks} checks, error "
            f"{outcome.error:.2g}, {outcome.seconds:.1f} s",
            flush=True,
        )
        if outcome.failed is not None:
            print(outcome.failed.strip().splitlines()[-1], flush=True)
        took = {"seconds": round(time.perf_counter() - start, 1), "tasks": len(tasks)}
        done = {"done": len(outcomes)}
        timing.write_json(options.out, {**head, **took, **done, **summary(outcomes)})

    run_all(tasks, device, options.jobs, report)
    failed = sum(outcome.failed is not None for outcome in outcomes)
    checks = sum(outcome.checks for outcome in outcomes)
    print(f"{checks} checks in {len(outcomes)} tasks, {failed} tasks failed")
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
