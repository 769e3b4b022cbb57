"""Reads prompts between rounds: which rows of whose prompt go into the next pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jetflow_core.rounds.draft import RoundDrafter
from jetflow_core.rounds.graphs import RoundPrograms
from jetflow_core.rounds.jobs import Job
from jetflow_core.rounds.pool import PageTables
from jetflow_core.rounds.prefill import Chunk, PrefillProgram


class PromptReader:
    """Fills the cache with what requests bring along, several of them in one pass.

    Args:
        program: does a pass.
        drafter: takes in the rows as well.
        tables: the pages.
    """

    def __init__(self, program: PrefillProgram, drafter: RoundDrafter, tables: PageTables) -> None:
        self._program, self._drafter, self._tables = program, drafter, tables

    def read(self, jobs: Sequence[Job], programs: RoundPrograms) -> None:
        """One pass over the next rows of these prompts, the first ones first.

        Args:
            jobs: in slots, with pages for all rows; those whose prompt is read are left alone.
            programs: run the pass.
        """
        chunks, left = [], self._program.rows
        for job in jobs:
            start = job.filled
            tokens = job.context[start : job.committed][: min(self._program.longest, left)]
            if tokens:
                chunks.append(Chunk(slot=job.in_slot(), start=start, tokens=tokens))
                job.filled += len(tokens)
                left -= len(tokens)
        if not chunks:
            return
        self._program.load(chunks)
        size = programs.prompt_size(
            requests=len(chunks),
            rows=self._program.rows - left,
            longest=max(len(chunk.tokens) for chunk in chunks),
            most_rows=self._program.rows,
            most_longest=self._program.longest,
            pages=max(self._tables.pages_for(chunk.start + len(chunk.tokens)) for chunk in chunks),
        )
        run = partial(self._program.run, size)
        programs.run(("prompt", size), run, self._drafter.changes)
