"""Walking many texts, in this process or in several while the device drafts the next ones."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from types import TracebackType
from typing import Self

from jetflow_train.evaluation.walk import Walk, WalkTask, walk_task

_WAITING = 4
"""Tasks a process that wait with their drafts, which are megabytes each."""


class Walkers:
    """Walks texts; a context manager that ends its processes.

    Args:
        count: processes; 1 walks in this one.

    Raises:
        ValueError: ``count`` is below 1.
    """

    def __init__(self, count: int = 1) -> None:
        if count < 1:
            raise ValueError(f"walkers {count} is out of range: at least 1")
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._count > 1:
            # Not forked: a process with a GPU or with threads must not be.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._count, mp_context=context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def walk(self, tasks: Iterable[WalkTask]) -> Iterator[dict[str, list[Walk]]]:
        """What ``walk_task`` gives for each task, in order; tasks are drawn as walks finish."""
        if self._pool is None:
            yield from map(walk_task, tasks)
            return
        waiting: deque[Future[dict[str, list[Walk]]]] = deque()
        for task in tasks:
            waiting.append(self._pool.submit(walk_task, task))
            if len(waiting) > _WAITING * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def available_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
