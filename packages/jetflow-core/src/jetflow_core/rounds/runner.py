"""The host's loop around rounds: admits requests, keeps pages, and reads one round late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from jetflow_core.decode import ContextTooLong
from jetflow_core.limits import MAX_BUDGET
from jetflow_core.picker import NonFiniteLogitsError
from jetflow_core.rounds.auto.choice import Choice
from jetflow_core.rounds.auto.rounds import Engine
from jetflow_core.rounds.batch import Batch
from jetflow_core.rounds.budgets import Budgets, FixedBudget, LiveBatch, Shares
from jetflow_core.rounds.draft import NoDraft, RoundDrafter
from jetflow_core.rounds.find import TORCH, RoundBackend, round_ops_for
from jetflow_core.rounds.graphs import RoundPrograms, rows_bucket
from jetflow_core.rounds.jobs import Job, Step
from jetflow_core.rounds.parts import runner_parts
from jetflow_core.rounds.requests import Finished, RoundRequest, picks_of
from jetflow_core.rounds.round import ImposedPicks
from jetflow_core.rounds.settings import RunnerSettings
from jetflow_core.rounds.state import RECORD
from jetflow_core.rounds.transfer import Download, Upload
from jetflow_core.stacks import DecoderStack

_COUNT, _ACCEPTED, _ROWS, _BROKEN, _VALID = range(len(RECORD))


@dataclass(frozen=True, slots=True, eq=False)
class _Flight:
    """A round under way."""

    jobs: tuple[tuple[Job, int, int], ...]
    """Who takes part, in which slot, and since which arrival there."""
    ticket: int
    """Of the copy of its record."""
    shares: Shares
    promised: int
    """Ticket of the copy of what it promised; with ``AutoBudget`` only."""


class RoundRunner:
    """Requests decoded in rounds on the device.

    Args:
        stack: the target, tapped as the drafter wants it.
        drafter: proposes; None: plain decoding.
        settings: sizes.
        budgets: rows of each tree; None: 64, or 1 without a draft. ``AutoBudget`` finds out what
            rounds cost before the first run of so many requests, unless that is known.
        backend: the steps of a round; None: those installed for the device.
        imposed: takes the place of the target's picks; None: nothing does.

    Raises:
        ValueError: something does not fit, named.
    """

    def __init__(
        self,
        stack: DecoderStack,
        drafter: RoundDrafter | None,
        settings: RunnerSettings,
        *,
        budgets: Budgets | None = None,
        backend: RoundBackend | None = None,
        imposed: ImposedPicks | None = None,
    ) -> None:
        self.backend = round_ops_for(stack.device) if backend is None else backend
        self._stack = stack
        self._drafter: RoundDrafter = NoDraft() if drafter is None else drafter
        self._budgets: Budgets = _default_budget(self._drafter) if budgets is None else budgets
        parts = runner_parts(
            stack, self._drafter, settings, budgets=self._budgets, ops=self.backend.ops,
            imposed=imposed,
        )  # fmt: skip
        self.pages, self.tables = parts.pages, parts.tables
        self._state, self._laws, self._auto = parts.state, parts.laws, parts.auto
        self._round, self._prompts = parts.round, parts.prompts
        self.programs = RoundPrograms(
            stack.device,
            # What the reference does can be captured only as far as its layers can.
            captured=stack.device.type == "cuda" and self.backend.name != TORCH,
            slots=settings.slots,
            pages=self.tables.table.shape[1],
        )
        self._tables_up = Upload(self._state.page_table)
        self._budgets_up = Upload(self._state.budgets)
        self._records = Download(self._state.record)
        self._batch = Batch(self.tables, scratch=parts.scratch, steps=self._drafter.depth + 1)
        self._flight: _Flight | None = None

    def prepare(self, requests: int) -> None:
        """Finds out what rounds of up to so many requests cost, if ``auto`` has to know.

        A run does it by itself. Costs are kept in the user's cache folder.

        Args:
            requests: at once, at least 1; more than there are slots is as many as slots.

        Raises:
            RuntimeError: a run is under way.
        """
        if self._batch.busy or self._flight:
            raise RuntimeError("another run is under way: let it end, or close it")
        if self._auto is None:
            return
        self._stack.prepare(*map(rows_bucket, range(1, MAX_BUDGET + 1)))
        engine = Engine(
            stack=self._stack, drafter=self._drafter, program=self._round, state=self._state,
            tables=self._tables_up, budgets=self._budgets_up, pages=self.pages,
            page=self.tables.page, steps=self.backend.name,
        )  # fmt: skip
        self._auto.prepare(engine, self.programs, max(requests, 1))

    def attention_version(self, rows: int) -> str:
        """What computes the attention of a pass over one tree of ``rows`` rows, for reports."""
        return self._round.attention_version(rows)

    def generate(self, requests: Sequence[RoundRequest]) -> list[Finished]:
        """All requests, finished, in their order; see ``run``."""
        jobs = self._jobs(requests)
        for _ in self._loop(jobs):
            pass
        return [job.result for job in jobs]

    def run(self, requests: Sequence[RoundRequest]) -> Iterator[Step]:
        """Decodes requests together, each as if it were alone.

        Args:
            requests: in order of admission; one that asks for no token has no step.

        Yields:
            What each round gave each request, one round late.

        Raises:
            ContextTooLong: before any work, if a prompt fills the target's context.
            ValueError: before any work, if the pages could not even hold one of them alone.
            NonFiniteLogitsError: a request's walk came to a row with NaN.
            RuntimeError: another run is under way.
        """
        return self._loop(self._jobs(requests))

    def _jobs(self, requests: Sequence[RoundRequest]) -> list[Job]:
        context, jobs = self._stack.context_length, []
        for index, request in enumerate(requests):
            room = context - len(request.prompt)
            if room < 1:
                raise ContextTooLong(
                    f"the prompt has {len(request.prompt)} tokens; the target's context of "
                    f"{context} leaves room for prompts of at most {context - 1}"
                )
            result = Finished(request.prompt, request.params.seed or 0)
            limit = min(request.params.max_new_tokens, room)
            jobs.append(Job(index, request, result, limit))
        self._batch.check(jobs)
        return jobs

    def _loop(self, jobs: Sequence[Job]) -> Iterator[Step]:
        working = [job for job in jobs if job.limit > 0]
        self.prepare(len(working))
        for job in jobs:
            if job.limit == 0:
                job.result.finish = "length"
        self._batch.add(working)
        try:
            while self._batch.busy or self._flight:
                for job in self._batch.admit():
                    self._drafter.begin(job.in_slot(), job.context, job.request.params)
                self._read_prompts()
                yield from self._make_room()
                while moved := self._batch.closer():
                    self._state.move(*moved)
                    self._laws.move(*moved)
                    self._drafter.move(*moved)
                before, self._flight = self._flight, self._launch()
                if before is not None:
                    yield from self._read(before)
        finally:
            self._batch.clear()
            self._flight = None
            for job in self._batch.held():
                self._leave(job)

    def _read_prompts(self) -> None:
        """One pass over the prompts that are not in the cache yet."""
        reading = [job for job in self._batch.held() if not job.live]
        if reading:
            self._tables_up.push(self.tables.table)
            self._prompts.read(reading, self.programs)
        for job in reading:
            if job.filled == job.committed:
                self._start(job)

    def _start(self, job: Job) -> None:
        request = job.request
        assert request.params.seed is not None
        job.live = True
        self._state.begin(
            job.in_slot(),
            root=job.context[-1],
            prefix_len=job.committed,
            remaining=job.limit - len(job.result.tokens),
            temperature=request.temperature,
            seed=request.params.seed,
            stops=request.stops,
        )
        self._laws.begin(job.in_slot(), request.params, len(request.prompt))

    def _make_room(self) -> Iterator[Step]:
        """Pages for the next round of every live request; the last to come give up theirs."""
        for job in self._batch.live():
            while job.slot is not None and not self._batch.reserve(job):
                if self._flight is not None:
                    # What is under way may end requests, and lengths become certain.
                    flight, self._flight = self._flight, None
                    yield from self._read(flight)
                else:
                    last = self._batch.held()[-1]
                    self._leave(last)
                    self._batch.wait_again(last)

    def _leave(self, job: Job) -> None:
        self._state.end(job.in_slot())
        self._batch.leave(job)

    def _launch(self) -> _Flight | None:
        live = self._batch.live()
        if not live:
            return None
        slots = [job.in_slot() for job in live]
        shares = self._shares(live, slots)
        self._tables_up.push(self.tables.table)
        budgets = np.ones(self.tables.table.shape[0], dtype=np.int32)
        budgets[slots] = shares.rows
        self._budgets_up.push(budgets)
        size = self.programs.size(
            requests=max(slots) + 1,
            rows=shares.total,
            tree_rows=max(shares.rows),
            pages=max(len(self.tables.held(slot)) for slot in slots),
        )
        self._stack.prepare(size.rows)
        picks = picks_of([(job.request, len(job.result.tokens)) for job in live])
        changes = (*self._state.changes, *self._drafter.changes)
        if self._auto is not None:
            changes = (*changes, *self._auto.shared.changes)
        self.programs.run((size, picks), partial(self._round.run, size, picks), changes)
        for job in live:
            job.flights += 1
        jobs = tuple((job, slot, job.arrival) for job, slot in zip(live, slots, strict=True))
        promised = 0 if self._auto is None else self._auto.started()
        return _Flight(jobs, self._records.start(), shares, promised)

    def _shares(self, live: Sequence[Job], slots: Sequence[int]) -> Shares:
        shares = self._budgets.share(
            LiveBatch(
                requests=tuple(job.index for job in live),
                slots=max(slots) + 1,
                context=sum(job.committed for job in live) / len(live),
            )
        )
        if self._auto is not None and isinstance(shares, Choice):
            self._auto.begin(shares)
        return shares

    def _read(self, flight: _Flight) -> Iterator[Step]:
        records = self._records.read(flight.ticket)
        if self._auto is not None and isinstance(flight.shares, Choice):
            lines = records[[slot for _, slot, _ in flight.jobs]]
            accepted = lines[lines[:, _COUNT] > 0, _ACCEPTED].tolist()
            self._auto.read(flight.shares, flight.promised, accepted)
        for job, slot, arrival in flight.jobs:
            # Who has left meanwhile gets nothing: what comes after its end is dropped.
            if job.slot is not None and job.arrival == arrival:
                job.flights -= 1
                yield self._taken(job, records[slot])

    def _taken(self, job: Job, record: NDArray[np.int32]) -> Step:
        count, tokens = int(record[_COUNT]), record[len(RECORD) :]
        if record[_BROKEN]:
            raise NonFiniteLogitsError(
                f"request {job.index}: the target's logits after {len(job.context)} tokens, or in "
                "the tree behind them, hold NaN"
            )
        if count < 1:
            raise RuntimeError(f"a round gave request {job.index} no token")
        job.result.drafts_refused += int(not record[_VALID])
        taken, text = job.take(tokens[:count].tolist())
        if job.result.finish is not None:
            self._leave(job)
        return Step(
            request=job.index,
            tokens=taken,
            text=text,
            finish=job.result.finish,
            accepted=int(record[_ACCEPTED]),
            rows=int(record[_ROWS]),
        )


def _default_budget(drafter: RoundDrafter) -> FixedBudget:
    return FixedBudget(64 if drafter.depth else 1)
