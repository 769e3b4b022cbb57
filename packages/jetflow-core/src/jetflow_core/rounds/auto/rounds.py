"""What a runner does for ``auto``: rows up, promises down one round late, costs before a start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from jetflow_core.rounds.auto.batch_trees import BatchTrees
from jetflow_core.rounds.auto.choice import AutoBudget, Choice
from jetflow_core.rounds.auto.costs import buckets_up_to
from jetflow_core.rounds.auto.measure import RoundTimer, contexts_for
from jetflow_core.rounds.auto.ready import cost_key, ready_costs
from jetflow_core.rounds.draft import RoundDrafter
from jetflow_core.rounds.graphs import RoundPrograms
from jetflow_core.rounds.round import RoundProgram
from jetflow_core.rounds.state import RoundState
from jetflow_core.rounds.transfer import Download, Upload
from jetflow_core.stacks import DecoderStack


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Engine:
    """The parts of a runner that rounds are measured with."""

    stack: DecoderStack
    drafter: RoundDrafter
    program: RoundProgram
    state: RoundState
    tables: Upload
    budgets: Upload
    pages: int
    page: int
    steps: str
    """Name of the steps of a round."""


class AutoRounds:
    """The part of a runner that belongs to ``AutoBudget``.

    Args:
        budget: chooses.
        depth: D of the drafter.
        device: of the rounds.
    """

    def __init__(self, budget: AutoBudget, depth: int, device: torch.device) -> None:
        self.budget, self.shared = budget, BatchTrees.empty(depth, device)
        self._totals = Upload(self.shared.total)
        self._promises = Download(self.shared.promise)

    def prepare(self, engine: Engine, programs: RoundPrograms, requests: int) -> None:
        """Costs for so many requests at once; measured, while no slot is in use, if unknown.

        More requests than there are slots are as many as slots.
        """
        stack, drafter, budget = engine.stack, engine.drafter, self.budget
        timer = RoundTimer(
            program=engine.program, programs=programs, state=engine.state, shared=self.shared,
            tables=engine.tables, budgets=engine.budgets, totals=self._totals, pages=engine.pages,
            page=engine.page,
            changes=(*engine.state.changes, *drafter.changes, *self.shared.changes),
        )  # fmt: skip
        key = cost_key(
            stack, drafter, steps=engine.steps, mode=programs.mode, page=engine.page,
            columns=engine.state.page_table.shape[1],
        )  # fmt: skip
        contexts = contexts_for(stack.context_length, steps=drafter.depth + 1)
        slots = engine.state.live.shape[0]
        # Captures take a while, and where rounds are captured a row more or less costs little.
        factor = 4 if programs.mode == "graphs" else 2
        wanted = buckets_up_to(min(requests, slots), slots, factor=factor)
        if ready_costs(budget, timer, key, wanted, contexts=contexts):
            timer.clear()

    def begin(self, choice: Choice) -> None:
        """The next round has these rows."""
        self._totals.push(np.array([choice.total], dtype=np.int32))

    def started(self) -> int:
        """A ticket for what the round that was just started will promise."""
        return self._promises.start()

    def read(self, choice: Choice, ticket: int, accepted: Sequence[int]) -> None:
        """Takes in a round.

        Args:
            choice: its rows.
            ticket: from ``started``.
            accepted: drafted tokens kept, of each request that was still live in it.
        """
        promise = self._promises.read(ticket)
        self.budget.learn(choice, len(accepted), sum(accepted), promise)
