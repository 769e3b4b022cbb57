"""What a runner is made of: pages, pools, the state of its slots, and the programs over them."""

from __future__ import annotations

from dataclasses import dataclass

from jetflow_core.rounds.auto.choice import AutoBudget
from jetflow_core.rounds.auto.rounds import AutoRounds
from jetflow_core.rounds.budgets import Budgets
from jetflow_core.rounds.draft import RoundDrafter
from jetflow_core.rounds.laws import Laws
from jetflow_core.rounds.ops import RoundOps
from jetflow_core.rounds.pool import PageTables, pages_in
from jetflow_core.rounds.prefill import PrefillProgram
from jetflow_core.rounds.prompts import PromptReader
from jetflow_core.rounds.round import ImposedPicks, RoundProgram
from jetflow_core.rounds.settings import RunnerSettings, row_bytes
from jetflow_core.rounds.state import RoundState
from jetflow_core.stacks import DecoderStack, KVPools


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunnerParts:
    """Made once for a runner; see ``runner_parts``."""

    scratch: int
    """Rows that a round may write behind the committed ones."""
    pages: int
    """Pages of every pool."""
    tables: PageTables
    state: RoundState
    laws: Laws
    round: RoundProgram
    prompts: PromptReader
    auto: AutoRounds | None
    """Of ``AutoBudget`` only."""


def runner_parts(
    stack: DecoderStack,
    drafter: RoundDrafter,
    settings: RunnerSettings,
    *,
    budgets: Budgets,
    ops: RoundOps,
    imposed: ImposedPicks | None,
) -> RunnerParts:
    """Makes the parts; the memory of pages and slots is taken here.

    Args:
        stack: the target.
        drafter: proposes; its pools are made too.
        settings: sizes.
        budgets: rows of each tree.
        ops: the steps of a round.
        imposed: takes the place of the target's picks; None: nothing does.

    Raises:
        ValueError: something does not fit, named.
    """
    if drafter.depth == 0 and budgets.most > 1:
        raise ValueError(f"without a draft a tree is its root: the budget is 1, got {budgets.most}")
    scratch = max(budgets.most, drafter.scratch_rows)
    pages = pages_in(settings.memory, page=settings.page, row_bytes=row_bytes(stack, drafter))
    tables = PageTables(
        pages=pages,
        page=settings.page,
        slots=settings.slots,
        longest=stack.context_length + scratch,
    )
    pools = KVPools.allocate(
        stack.shape, pages=pages, page=settings.page, dtype=stack.dtype, device=stack.device
    )
    drafter.allocate(pages=pages, page=settings.page, slots=settings.slots)
    state = RoundState.empty(
        slots=settings.slots,
        max_pages=tables.table.shape[1],
        steps=drafter.depth + 1,
        device=stack.device,
    )
    laws = Laws.empty(settings.slots, stack.device)
    auto = (
        AutoRounds(budgets, drafter.depth, stack.device)
        if isinstance(budgets, AutoBudget)
        else None
    )
    given = (stack, drafter, ops, pools, state)
    prefill = PrefillProgram(*given, longest=settings.prefill_rows, rows=settings.prompt_rows)
    return RunnerParts(
        scratch=scratch,
        pages=pages,
        tables=tables,
        state=state,
        laws=laws,
        round=RoundProgram(
            *given, laws, imposed=imposed, shared=None if auto is None else auto.shared
        ),
        prompts=PromptReader(prefill, drafter, tables),
        auto=auto,
    )
