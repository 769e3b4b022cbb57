"""Rows that decode side by side, each taking the next prompt as soon as its answer is done.

The host never waits for the device to run out of work: it starts a window of steps, and only then
looks at what the window before it had written. So the rows are looked after while they decode, and
a row that is done idles one window more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from jetflow_core.offline.attention import RowAttention
from jetflow_core.offline.jobs import Answer, Job
from jetflow_core.offline.passes import cut_into_passes
from jetflow_core.offline.rows import Rows
from jetflow_core.offline.snapshot import Snapshot
from jetflow_core.offline.stack import Stack

COLUMNS = 64
"""Steps are captured for lengths up to the next multiple of this."""


class RowDecoder:
    """Answers jobs in ``rows`` static rows.

    Args:
        stack: the target.
        attend: attention of a step.
        rows: sequences decoded at once.
        capacity: longest prompt plus answer, in tokens.
        max_new_tokens: longest answer.
        check_every: steps of a window, between two looks at the rows.
        refill: fewest prompts for which a pass that they do not fill is run while others decode.

    Raises:
        ValueError: a size is below 1, or the target has fewer positions than ``capacity``, or
            ``capacity`` leaves no room for a prompt.
    """

    def __init__(
        self,
        stack: Stack,
        attend: RowAttention,
        *,
        rows: int,
        capacity: int,
        max_new_tokens: int,
        check_every: int = 4,
        refill: int = 1,
    ) -> None:
        sizes = {"rows": rows, "capacity": capacity, "max_new_tokens": max_new_tokens,
                 "check_every": check_every, "refill": refill}  # fmt: skip
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if capacity > stack.max_positions:
            raise ValueError(
                f"prompt and answer may need {capacity} positions, the target has "
                f"{stack.max_positions}"
            )
        if capacity <= max_new_tokens:
            raise ValueError(
                f"a capacity of {capacity} leaves no room for a prompt before "
                f"{max_new_tokens} new tokens"
            )
        self.longest, self.max_new_tokens = capacity, max_new_tokens
        self.check_every, self.refill = check_every, refill
        self.capacity = -(-capacity // COLUMNS) * COLUMNS
        self._stops = np.asarray(tuple(stack.stop_tokens), dtype=np.int64)
        self._rows = Rows(
            stack,
            attend,
            rows=rows,
            capacity=self.capacity,
            longest_prompt=capacity - max_new_tokens,
            max_new_tokens=max_new_tokens,
        )
        # Taken in turn: one is read while the other is written.
        self._snapshots = (self._rows.snapshot(), self._rows.snapshot())
        self._jobs: list[Job | None] = [None] * rows
        # What a window asks of all jobs, so that none walks through a list of them.
        self._running = np.zeros(rows, dtype=np.bool_)
        self._sampled = np.zeros(rows, dtype=np.bool_)
        self._ends = np.zeros(rows, dtype=np.int64)
        self._since = np.zeros(rows, dtype=np.int64)
        self._window = 0
        self._held: list[Job] = []
        self._turn = object()

    @torch.no_grad()
    def answer(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """The answers of all jobs, in the order in which they get done.

        Jobs are taken from the iterable as rows become free, never all at once. An answer depends
        on its own job alone, up to the rounding of the device's matrix products.

        The rows belong to the newest call: what an older one has not answered yet is dropped.

        Raises:
            ValueError: a job does not fit the decoder; no row is changed by it.
            RuntimeError: more is asked of an older call.
        """
        waiting = iter(jobs)
        self._clear()
        turn = self._turn = object()
        try:
            while self._admit(waiting):
                self._run_window()
                # Of the window before: this one runs meanwhile.
                if self._window > 0:
                    for answer in self._harvest(self._window - 1):
                        yield answer
                        if self._turn is not turn:
                            raise RuntimeError("the decoder's rows answer other jobs by now")
                self._window += 1
        finally:
            # One that was left half read may end long after the next has begun.
            if self._turn is turn:
                self._clear()

    def _clear(self) -> None:
        self._jobs, self._held, self._window = [None] * len(self._jobs), [], 0
        for host in (self._running, self._sampled, self._ends, self._since):
            host[:] = 0
        self._rows.clear()

    def _admit(self, waiting: Iterator[Job]) -> bool:
        """Give free rows new prompts; False where nothing is left to decode."""
        free = np.flatnonzero(~self._running)
        room = len(free) - len(self._held)
        new = list(islice(waiting, room))
        for job in new:
            self._check(job)
        jobs, self._held = self._held + new, []
        shape, taken = self._rows.pass_shape, 0
        for batch in cut_into_passes(jobs, shape.tokens, shape.places):
            # A pass costs the same however little of it is filled: the last one may wait.
            full = taken + len(batch) < len(jobs)
            ended = len(new) < room
            if not (full or ended or len(batch) >= self.refill) and self._running.any():
                self._held = batch
                break
            self._begin(batch, free[taken : taken + len(batch)])
            taken += len(batch)
        return bool(self._running.any())

    def _check(self, job: Job) -> None:
        if len(job.prompt) + self.max_new_tokens > self.longest:
            raise ValueError(
                f"job {job.number}: a prompt of {len(job.prompt)} and {self.max_new_tokens} new "
                f"tokens exceed the capacity of {self.longest}"
            )
        if job.temperature > 0 and len(job.uniforms) < self.max_new_tokens:
            raise ValueError(
                f"job {job.number} brings {len(job.uniforms)} random numbers for "
                f"{self.max_new_tokens} new tokens"
            )

    def _begin(self, batch: list[Job], rows: NDArray[np.int64]) -> None:
        self._rows.read(batch, rows)
        for row, job in zip(rows.tolist(), batch, strict=True):
            self._jobs[row] = job
        self._running[rows], self._since[rows] = True, self._window
        self._ends[rows] = [len(job.prompt) for job in batch]
        self._sampled[rows] = [job.temperature > 0 for job in batch]

    def _run_window(self) -> None:
        """Start steps, and the copy of what they will have written."""
        self._ends += self.check_every * self._running
        longest = min(self.capacity, -(-int(self._ends.max()) // COLUMNS) * COLUMNS)
        sampled = bool(self._sampled.any())
        for _ in range(self.check_every):
            self._rows.step(longest, sampled=sampled)
        self._snapshot(self._window).take()

    def _snapshot(self, window: int) -> Snapshot:
        return self._snapshots[window % len(self._snapshots)]

    def _harvest(self, window: int) -> Iterator[Answer]:
        done, written, answers = self._snapshot(window).read()
        # A row that was given its prompt after that window still shows what it wrote before.
        known = self._running & (self._since <= window)
        rows = np.flatnonzero(known & done[: len(known)])
        counts, texts = written[rows], answers[rows]
        finished = np.isin(texts[np.arange(len(rows)), counts - 1], self._stops)
        jobs = [self._jobs[row] for row in rows]
        self._running[rows], self._sampled[rows], self._ends[rows] = False, False, 0
        for row in rows:
            self._jobs[row] = None
        for job, text, count, stop in zip(
            jobs, texts, counts.tolist(), finished.tolist(), strict=True
        ):
            if job is not None:
                yield Answer(job.number, text[:count].copy(), stop)
