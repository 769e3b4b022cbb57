"""Pieces of the lists, run in several processes, and what came of each."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A few checks that share compiled kernels."""

    list: str
    """Which list it belongs to."""
    backend: str
    dtype: str
    case: str
    run: Callable[[str], tuple[int, float]]
    """Takes the device; returns how many checks held and the largest error, or raises. Can be
    pickled."""
    captures: bool = False
    """Whether it captures CUDA graphs, or measures by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a task."""

    list: str
    backend: str
    dtype: str
    case: str
    checks: int
    error: float
    failed: str | None
    seconds: float


def run_one(task: Task, device: str) -> Outcome:
    """Runs a task in this process; whatever it raises is its outcome."""
    start, checks, error, failed = time.perf_counter(), 0, 0.0, None
    # Every kind of failure of a kernel is one, and the other tasks have to go on.
    try:
        torch.manual_seed(0)
        with torch.no_grad():
            checks, error = task.run(device)
            if device == "cuda":
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
        if checks < 1:
            failed = "it checked nothing"
    except Exception:
        failed = traceback.format_exc()[-2000:]
    return _outcome(task, checks, error, failed, time.perf_counter() - start)


def _outcome(task: Task, checks: int, error: float, failed: str | None, seconds: float) -> Outcome:
    return Outcome(
        list=task.list, backend=task.backend, dtype=task.dtype, case=task.case, checks=checks,
        error=error, failed=failed, seconds=round(seconds, 3),
    )  # fmt: skip


def run_all(
    tasks: Sequence[Task], device: str, jobs: int, report: Callable[[Outcome], None]
) -> None:
    """Runs tasks and tells each outcome as soon as it is there.

    Args:
        tasks: what to run.
        device: ``cuda``, or ``cpu`` in Triton's interpreter.
        jobs: processes; kernels are compiled in all of them at once. 1: this one.
        report: gets the outcomes in the order in which they come.
    """
    if jobs == 1:
        for task in tasks:
            report(run_one(task, device))
        return
    # A fork could not use the device.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures: dict[Future[Outcome], Task] = {
            pool.submit(run_one, task, device): task for task in tasks
        }
        for future in as_completed(futures):
            lost = future.exception()
            if lost is None:
                report(future.result())
            else:
                report(_outcome(futures[future], 0, 0.0, f"its process died: {lost!r}", 0.0))


def summary(outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Counts and largest errors by list, backend and type, and the failures in full."""
    groups: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.list, outcome.backend, outcome.dtype].append(outcome)
    return {
        "checks": sum(outcome.checks for outcome in outcomes),
        "failed": sum(outcome.failed is not None for outcome in outcomes),
        "lists": [
            {
                "list": name,
                "backend": backend,
                "dtype": dtype,
                "checks": sum(each.checks for each in group),
                "failed": sum(each.failed is not None for each in group),
                "largest_error": max(each.error for each in group),
                "seconds": round(sum(each.seconds for each in group), 1),
            }
            for (name, backend, dtype), group in sorted(groups.items())
        ],
        "failures": [asdict(each) for each in outcomes if each.failed is not None],
    }
