"""The parts of the check as tasks, in this process or shared by several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch

from jetflow_core.bench.engine.settings import AUTO, PLAIN
from jetflow_core.bench.engine.summary import told_budget
from jetflow_core.bench.engine_lossless.exact import exact_cell
from jetflow_core.bench.engine_lossless.place import Place
from jetflow_core.bench.engine_lossless.rounding import rounding_cell
from jetflow_core.bench.engine_lossless.sampling import sampling_cell
from jetflow_core.bench.engine_lossless.settings import (
    EXACT,
    ROUNDING,
    SAMPLING,
    EngineLosslessSettings,
)
from jetflow_core.bench.workers import WorkerError

SAMPLING_DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One cell of one part."""

    part: str
    drafter: str = ""
    budget: int = PLAIN
    batch: int = 0
    dtype: str = ""
    rounds: int = 0

    @property
    def name(self) -> str:
        """Under which its result is kept."""
        if self.part == EXACT:
            return f"{self.part} {self.drafter} {told_budget(self.budget)}"
        if self.part == ROUNDING:
            return f"{self.part} {self.batch}"
        return f"{self.part} {self.dtype} {self.rounds}"


def tasks_of(settings: EngineLosslessSettings) -> list[Task]:
    """All tasks, those that take longest first."""
    found = []
    if SAMPLING in settings.parts:
        found += [
            Task(part=SAMPLING, dtype=dtype, rounds=settings.rounds) for dtype in SAMPLING_DTYPES
        ]
    if ROUNDING in settings.parts:
        found += [Task(part=ROUNDING, batch=batch) for batch in (1, settings.batch)]
    if EXACT in settings.parts:
        cells = [
            Task(part=EXACT, drafter=drafter, budget=budget)
            for drafter in settings.drafters
            for budget in settings.budgets
        ]
        # Wrong drafts and plain rounds take the most rounds.
        found += sorted(
            cells, key=lambda each: (each.drafter != "wrong", each.budget not in (PLAIN, AUTO))
        )
    return found


def run_task(place: Place, task: Task) -> dict[str, Any]:
    """What a task found."""
    if task.part == EXACT:
        return exact_cell(place, task.drafter, task.budget)
    if task.part == ROUNDING:
        return rounding_cell(place, task.batch)
    dtype: torch.dtype = getattr(torch, task.dtype)
    if place.settings.threads is not None:
        torch.set_num_threads(place.settings.threads)
    return sampling_cell(torch.device(place.settings.device), dtype, task.rounds)


def run_tasks(
    place: Place, tasks: Sequence[Task], processes: int
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Results as they come.

    Args:
        place: goes to every process.
        tasks: in the order in which they begin.
        processes: 1 works in this process; more are spawned and share the device.

    Raises:
        WorkerError: a process died.
        ValueError: what a task refuses.
    """
    if processes == 1 or len(tasks) < 2:
        for task in tasks:
            yield task, run_task(place, task)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes, len(tasks)), mp_context=context) as pool:
        futures = {pool.submit(run_task, place, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise WorkerError("a worker process died without a word") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
