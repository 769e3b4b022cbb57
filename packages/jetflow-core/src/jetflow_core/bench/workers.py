"""The tasks of the lossless grid, in this process or shared by several."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from typing import Any

import torch

from jetflow_core.bench.grid import Case, Outcome, Task, run_task
from jetflow_core.engine import Engine, load

_POLL_SECONDS = 1.0


class WorkerError(RuntimeError):
    """A worker process failed; the message says how."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workplace:
    """What every worker loads, and how it decodes."""

    target: str
    head: str | None
    device: str
    dtype: str
    max_new_tokens: int
    num_slots: int
    threads: int


def run_tasks(
    place: Workplace, cases: Sequence[Case], tasks: Sequence[Task], *, processes: int
) -> Iterator[Outcome]:
    """Outcomes of ``tasks`` as they finish, in any order.

    Args:
        place: the engine to load.
        cases: prompts and plain answers.
        tasks: the longest first, so that no process ends with a long one alone.
        processes: 1 works in this process; more are spawned and share the device.

    Raises:
        WorkerError: a spawned process failed.
        ValueError: what ``load`` refuses.
    """
    if processes == 1:
        engine = open_engine(place)
        for task in tasks:
            yield _run(engine, place, cases, task)
        return
    yield from _shared(place, cases, tasks, min(processes, len(tasks)))


def open_engine(place: Workplace) -> Engine:
    """The engine of a workplace, with exact float32 products."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.fp32_precision = "ieee"
    torch.set_num_threads(place.threads)
    dtype: torch.dtype = getattr(torch, place.dtype)
    return load(place.target, place.head, device=place.device, dtype=dtype)


def _run(engine: Engine, place: Workplace, cases: Sequence[Case], task: Task) -> Outcome:
    return run_task(
        engine, cases, task, max_new_tokens=place.max_new_tokens, num_slots=place.num_slots
    )


def _shared(
    place: Workplace, cases: Sequence[Case], tasks: Sequence[Task], count: int
) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    todo: Queue[Task | None] = context.Queue()
    done: Queue[Outcome | str] = context.Queue()
    for task in (*tasks, *[None] * count):
        todo.put(task)
    workers = [
        context.Process(target=_work, args=(place, cases, todo, done), daemon=True)
        for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    try:
        for _ in tasks:
            yield _next(done, workers)
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
        for channel in (todo, done):
            channel.cancel_join_thread()
            channel.close()


def _work(place: Workplace, cases: Sequence[Case], todo: Queue[Any], done: Queue[Any]) -> None:
    """Body of a spawned process."""
    try:
        engine = open_engine(place)
        while (task := todo.get()) is not None:
            done.put(_run(engine, place, cases, task))
    except Exception as error:
        done.put(f"{type(error).__name__}: {error}")
        raise


def _next(done: Queue[Any], workers: Sequence[BaseProcess]) -> Outcome:
    while True:
        try:
            found = done.get(timeout=_POLL_SECONDS)
        except queue.Empty:
            codes = [worker.exitcode for worker in workers]
            # 0 is a worker that ran out of tasks; anything else ended without a word.
            if any(code not in (None, 0) for code in codes):
                raise WorkerError(f"a worker process died; exit codes {codes}") from None
            continue
        if isinstance(found, str):
            raise WorkerError(f"a worker process failed: {found}")
        outcome: Outcome = found
        return outcome
