"""Runners of one subject: plain, with trees, and with trees whose phases are marked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from jetflow_core.bench.engine import marks as phases
from jetflow_core.bench.engine.imposed import ImposedAcceptance, ImposedScores
from jetflow_core.bench.engine.imposed_trees import ImposedOnTrees
from jetflow_core.bench.engine.marks import Marked, MarkedPrograms, Marks
from jetflow_core.bench.engine.settings import PLAIN, EngineSettings
from jetflow_core.bench.engine.subjects import Subject
from jetflow_core.bench.engine.timed import TimedPrograms
from jetflow_core.limits import MAX_BUDGET
from jetflow_core.rounds import (
    AutoBudget,
    Choice,
    HeadRound,
    ImposedPicks,
    LiveBatch,
    NoDraft,
    RoundBackend,
    RoundDrafter,
    RoundOps,
    RoundRunner,
    RunnerSettings,
    Shares,
    round_ops_for,
    row_bytes,
)
from jetflow_core.stacks import DecoderStack


class ChosenBudget:
    """``Budgets`` that say what they are told, and remember who took part in each round."""

    def __init__(self, most: int) -> None:
        self.most = most
        """See ``Budgets``."""
        self.restart(most)

    def restart(self, rows: int) -> None:
        """Trees have so many rows from now on; forgets who took part in rounds."""
        self.rows = rows
        self.rounds: list[tuple[int, ...]] = []

    def share(self, batch: LiveBatch) -> Shares:
        """See ``Budgets``."""
        self.rounds.append(batch.requests)
        count = len(batch.requests)
        return Shares(rows=(self.rows,) * count, total=self.rows * count)


class WatchedAuto(AutoBudget):
    """``AutoBudget`` that remembers who took part in each round."""

    def begin_run(self) -> None:
        """Forgets who took part; what was seen of costs and acceptance stays."""
        self.rounds: list[tuple[int, ...]] = []

    def share(self, batch: LiveBatch) -> Choice:
        """See ``AutoBudget``."""
        self.rounds.append(batch.requests)
        return super().share(batch)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Side:
    """A runner with what is to be told and asked of it between runs."""

    runner: RoundRunner
    budgets: ChosenBudget | WatchedAuto
    programs: TimedPrograms | MarkedPrograms
    imposed: ImposedAcceptance | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Parts:
    """What a runner is made of."""

    stack: DecoderStack
    drafter: RoundDrafter
    backend: RoundBackend
    imposed: ImposedPicks | None


def plain_side(subject: Subject, settings: EngineSettings) -> Side:
    """Plain decoding without a head: nothing is tapped, drafted or absorbed."""
    backend = round_ops_for(subject.stack.device)
    parts = _Parts(stack=subject.plain, drafter=NoDraft(), backend=backend, imposed=None)
    return _side(parts, subject, settings, ChosenBudget(PLAIN), None, None)


def tree_side(subject: Subject, settings: EngineSettings) -> Side:
    """Trees, timed from the outside only."""
    imposed = _imposed(subject, settings)
    parts = _drafting(subject, _drafter(subject), imposed)
    return _side(parts, subject, settings, ChosenBudget(max(settings.sizes)), imposed, None)


def auto_side(subject: Subject, settings: EngineSettings) -> Side:
    """Trees of a budget that is chosen every round; finds out what rounds cost."""
    drafter = _drafter(subject)
    imposed = None
    if subject.model is not None:
        assert isinstance(drafter, ImposedScores)
        imposed = ImposedOnTrees(drafter, **_imposed_sizes(subject, settings, MAX_BUDGET))
    budget = WatchedAuto()
    budget.begin_run()
    side = _side(_drafting(subject, drafter, imposed), subject, settings, budget, imposed, None)
    side.runner.prepare(settings.batch)
    return side


def _drafting(subject: Subject, drafter: RoundDrafter, imposed: ImposedAcceptance | None) -> _Parts:
    return _Parts(
        stack=subject.stack,
        drafter=drafter,
        backend=round_ops_for(subject.stack.device),
        imposed=imposed,
    )


def marked_side(subject: Subject, settings: EngineSettings, *, plain: bool) -> Side:
    """Plain decoding or trees with marks between the phases."""
    marks = Marks(subject.stack.device)
    imposed = None if plain else _imposed(subject, settings)
    stack: Any = subject.plain if plain else subject.stack
    drafter: Any = NoDraft() if plain else _drafter(subject)
    backend = round_ops_for(subject.stack.device)
    # The stand-ins pass on whatever they do not mark, which no checker can see.
    parts = _Parts(
        stack=cast("DecoderStack", Marked(
            stack, marks, {"forward": phases.VERIFY}, {"logits": phases.PICK}
        )),
        drafter=cast("RoundDrafter", Marked(
            drafter, marks, {"propose": phases.HEAD, "absorb": phases.ABSORB},
            {"propose": phases.TREE, "absorb": phases.STATE},
        )),
        backend=replace(backend, ops=cast("RoundOps", Marked(
            backend.ops, marks,
            {"build_tree": phases.TREE, "accept_walk": phases.ACCEPT, "commit_path": phases.COMMIT},
            {"commit_path": phases.STATE},
        ))),
        imposed=None if imposed is None else cast("ImposedPicks", Marked(
            imposed, marks, {"__call__": phases.IMPOSED}, {}
        )),
    )  # fmt: skip
    budget = ChosenBudget(PLAIN if plain else max(settings.sizes))
    return _side(parts, subject, settings, budget, imposed, marks)


def _drafter(subject: Subject) -> RoundDrafter:
    assert subject.head is not None
    ops = round_ops_for(subject.stack.device).ops
    drafter = HeadRound.fitted(subject.head, subject.stack, ops, depth=subject.depth)
    if subject.model is None:
        return drafter
    table = torch.from_numpy(subject.model.log_probs).to(subject.stack.device)
    return ImposedScores(drafter, table)


def _imposed(subject: Subject, settings: EngineSettings) -> ImposedAcceptance | None:
    if subject.model is None:
        return None
    # Graphs of trees are made for powers of two.
    most = 1 << (max(settings.sizes) - 1).bit_length()
    return ImposedAcceptance(**_imposed_sizes(subject, settings, most))


def _imposed_sizes(subject: Subject, settings: EngineSettings, most: int) -> dict[str, Any]:
    return {
        "slots": settings.batch,
        "rounds": settings.rounds,
        "most_rows": most,
        "vocab_size": subject.stack.vocab_size,
        "device": subject.stack.device,
    }


def _side(
    parts: _Parts,
    subject: Subject,
    settings: EngineSettings,
    budgets: ChosenBudget | WatchedAuto,
    imposed: ImposedAcceptance | None,
    marks: Marks | None,
) -> Side:
    runner = RoundRunner(
        parts.stack,
        parts.drafter,
        _sizes(parts, subject, settings, budgets.most),
        budgets=budgets,
        backend=parts.backend,
        imposed=parts.imposed,
    )
    given: dict[str, Any] = {
        "captured": runner.programs.mode == "graphs",
        "slots": settings.batch,
        "pages": runner.tables.table.shape[1],
        "changes": () if imposed is None else imposed.changes,
    }
    programs = (
        TimedPrograms(subject.stack.device, **given)
        if marks is None
        else MarkedPrograms(subject.stack.device, **given, marks=marks)
    )
    runner.programs = programs
    return Side(runner=runner, budgets=budgets, programs=programs, imposed=imposed)


def _sizes(parts: _Parts, subject: Subject, settings: EngineSettings, most: int) -> RunnerSettings:
    """Pages for the whole batch, so that nobody waits and nobody is preempted."""
    longest = min(
        max(map(len, subject.prompts)) + subject.new_tokens, subject.stack.context_length
    ) + max(most, parts.drafter.scratch_rows)
    pages = settings.batch * (-(-longest // settings.page) + 2)
    row = row_bytes(parts.stack, parts.drafter)
    return RunnerSettings(
        memory=pages * settings.page * row,
        slots=settings.batch,
        page=settings.page,
        prefill_rows=settings.prefill_rows,
    )
