"""Who is in which slot with which pages: the host's book of a batch, without any device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from jetflow_core.rounds.jobs import Job
from jetflow_core.rounds.pool import PageTables


class Batch:
    """Jobs in slots, and those that wait.

    Args:
        tables: the pages; a slot for each of their lines.
        scratch: rows that a round may write behind the committed ones.
        steps: most rows that a round commits.
    """

    def __init__(self, tables: PageTables, *, scratch: int, steps: int) -> None:
        self.tables = tables
        self._scratch, self._steps = scratch, steps
        self._slots: list[Job | None] = [None] * tables.table.shape[0]
        self._waiting: deque[Job] = deque()
        self._arrivals = 0

    @property
    def busy(self) -> bool:
        """Whether anybody waits or is in a slot."""
        return bool(self._waiting) or any(self._slots)

    def check(self, jobs: Iterable[Job]) -> None:
        """Refuses what could not even be served alone.

        Raises:
            ValueError: a job needs more pages than there are.
        """
        for job in jobs:
            needed = self.tables.pages_for(job.most_rows + self._scratch)
            if needed > self.tables.num_pages:
                raise ValueError(
                    f"request {job.index} may need {needed} pages for {job.most_rows} rows and "
                    f"{self._scratch} of scratch; there are {self.tables.num_pages} in all"
                )

    def add(self, jobs: Iterable[Job]) -> None:
        """These wait for slots, in this order."""
        self._waiting.extend(jobs)

    def held(self) -> list[Job]:
        """Jobs in slots, the longest there first."""
        return sorted((job for job in self._slots if job), key=lambda job: job.arrival)

    def live(self) -> list[Job]:
        """Jobs that the next round is for, the longest there first."""
        return [job for job in self.held() if job.live and not job.surely_ending]

    def admit(self) -> list[Job]:
        """Gives free slots to waiting jobs as long as pages last; those that got one."""
        admitted = []
        while self._waiting and None in self._slots:
            job, slot = self._waiting[0], self._slots.index(None)
            rows = job.committed + self._scratch
            # A page more for each of the others, or whoever comes would go again at once.
            spare = len(self.held())
            if self.tables.pages_for(rows) + spare > self.tables.num_free:
                break
            self.tables.reserve(slot, rows)
            self._waiting.popleft()
            self._arrivals += 1
            self._slots[slot], job.slot = job, slot
            job.filled, job.live, job.flights, job.arrival = 0, False, 0, self._arrivals
            admitted.append(job)
        return admitted

    def reserve(self, job: Job) -> bool:
        """Pages for the job's next round, whatever the rounds under way commit.

        What it holds beyond that is freed. False, and nothing more, if pages are short.
        """
        rows = min(job.committed + job.flights * self._steps, job.most_rows) + self._scratch
        slot = job.in_slot()
        self.tables.trim(slot, rows)
        return self.tables.reserve(slot, rows)

    def closer(self) -> tuple[int, int] | None:
        """Moves the job in the highest slot to the lowest free one, if that is lower.

        A round computes something for every slot up to the highest one in use.

        Returns:
            Both slots; None if nobody has to move.
        """
        used = [slot for slot, job in enumerate(self._slots) if job]
        if not used or None not in self._slots[: used[-1]]:
            return None
        source, goal = used[-1], self._slots.index(None)
        job = self._slots[source]
        assert job is not None
        self.tables.move(source, goal)
        self._slots[source], self._slots[goal], job.slot = None, job, goal
        return source, goal

    def leave(self, job: Job) -> None:
        """The job gives up its slot and pages.

        Rounds under way still write there. The device does one after the other, so whoever gets
        the pages next comes after them.
        """
        slot = job.in_slot()
        self.tables.release(slot)
        self._slots[slot], job.slot, job.live, job.flights = None, None, False, 0

    def wait_again(self, job: Job) -> None:
        """A job that left its slot is the next to get one; what it wrote is computed again."""
        job.result.preemptions += 1
        self._waiting.appendleft(job)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
