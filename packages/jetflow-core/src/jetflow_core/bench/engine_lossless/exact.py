"""float32: token identity with transformers' generate and with the request alone, in a full batch.

The pages are just enough to admit a whole batch at once, so that growing answers take them from
each other: requests end, come and are preempted while others decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jetflow_core.bench.engine.settings import AUTO
from jetflow_core.bench.engine.sides import ChosenBudget, WatchedAuto
from jetflow_core.bench.engine.summary import told_budget
from jetflow_core.bench.engine_lossless.gaps import LogitGaps
from jetflow_core.bench.engine_lossless.parting import parting
from jetflow_core.bench.engine_lossless.place import (
    Asked,
    Models,
    Place,
    decoded,
    made_runner,
    scratch_of,
    used_by,
)
from jetflow_core.rounds import Finished, RoundCosts
from jetflow_core.rounds.auto.costs import TOTALS, buckets_up_to

MUST_HAPPEN = ("completions", "admissions", "preemptions")
"""While others decode; a run without one of them has shown nothing of it."""
_SECONDS_A_ROW = 1 / 512


def asked_of(place: Place) -> list[Asked]:
    """Half as many requests again as are held at once, or more, of different lengths."""
    cases, settings = place.cases, place.settings
    most = settings.max_new_tokens
    return [
        Asked(case=cases[i % len(cases)], limit=max(most - i % 4 * most // 8, 1))
        for i in range(max(len(cases), settings.batch * 3 // 2))
    ]


def exact_cell(place: Place, drafter: str, budget: int) -> dict[str, Any]:
    """One drafter at one budget.

    Args:
        place: what is loaded.
        drafter: its name.
        budget: rows of each tree, or ``AUTO``.

    Returns:
        Counts of both runs, and every difference.
    """
    models, asked = Models.load(place, torch.float32), asked_of(place)
    proposes = models.drafter(drafter, place.cases)
    budgets = _budgets(budget, place.settings.batch)
    pages = tight_pages(asked, place.settings, scratch_of(proposes, budgets.most))
    runner = made_runner(
        models.stack, proposes, budgets, place.settings, pages=pages, slots=place.settings.batch
    )
    together = decoded(runner, models.stack, asked)
    happened = events(budgets.rounds, together)
    alone = [decoded(runner, models.stack, [each])[0] for each in asked]
    gaps = LogitGaps(place.target, torch.float32, place.settings.device)
    return {
        "drafter": drafter,
        "budget": told_budget(budget),
        "batch": place.settings.batch,
        "pages": pages,
        "together": {**_counts(together), **happened},
        "alone": _counts(alone),
        "lacking": [name for name in MUST_HAPPEN if not happened[name]],
        "differences": _differences(asked, together, alone, gaps),
        "chosen": _chosen(budgets),
        "used": used_by(runner, models),
    }


def tight_pages(asked: Sequence[Asked], settings: Any, scratch: int) -> int:
    """Pages that let the first batch in, and hold little more.

    Args:
        asked: the requests, in order.
        settings: with the sizes of batch and page.
        scratch: rows behind the committed ones.
    """

    def pages_for(rows: int) -> int:
        return int(-(-(rows + scratch) // settings.page))

    first = asked[: settings.batch]
    # Whoever comes leaves a page for each of those who are there.
    admitted = sum(pages_for(len(each.case.prompt) - 1) for each in first) + len(first) - 1
    largest = max(pages_for(len(each.case.prompt) - 1 + each.limit) for each in asked)
    return max(admitted, largest)


def events(rounds: Sequence[Sequence[int]], found: Sequence[Finished]) -> dict[str, int]:
    """What happened while others decoded.

    Args:
        rounds: who took part in each.
        found: what became of each request.
    """
    last = {who: number for number, present in enumerate(rounds) for who in present}
    seen: set[int] = set()
    admissions = completions = 0
    for number, present in enumerate(rounds):
        before = set(rounds[number - 1]) if number else set()
        new = set(present) - seen
        if before & set(present):
            admissions += len(new)
        seen |= new
        after = set(rounds[number + 1]) if number + 1 < len(rounds) else set()
        if after & set(present):
            completions += sum(last[who] == number for who in present)
    return {
        "batch_rounds": len(rounds),
        "most_at_once": max(map(len, rounds), default=0),
        "admissions": admissions,
        "completions": completions,
        "preemptions": sum(each.preemptions for each in found),
    }


def _budgets(budget: int, slots: int) -> ChosenBudget | WatchedAuto:
    if budget != AUTO:
        return ChosenBudget(budget)
    auto = WatchedAuto(_made_up_costs(slots))
    auto.begin_run()
    return auto


def _made_up_costs(slots: int) -> RoundCosts:
    """Rows that cost little, so that trees are chosen; the same on every machine."""
    return RoundCosts(
        contexts=(0,),
        seconds={
            (requests, total): (1.0 + total * _SECONDS_A_ROW,)
            for requests in buckets_up_to(slots, slots)
            for total in {requests, *(each for each in TOTALS if each >= 2 * requests)}
        },
    )


def _counts(found: Sequence[Finished]) -> dict[str, Any]:
    tokens, rounds = sum(len(each.tokens) for each in found), sum(each.rounds for each in found)
    return {
        "requests": len(found),
        "tokens": tokens,
        "rounds": rounds,
        "tau": tokens / rounds if rounds else 0.0,
        "drafts_refused": sum(each.drafts_refused for each in found),
    }


def _differences(
    asked: Sequence[Asked],
    together: Sequence[Finished],
    alone: Sequence[Finished],
    gaps: LogitGaps,
) -> list[dict[str, Any]]:
    """Of both runs against transformers, and of each against the other."""
    listed = []
    for number, (each, batch, solo) in enumerate(zip(asked, together, alone, strict=True)):
        for run, against, expected, found in (
            ("together", "transformers", each.wanted, batch.tokens),
            ("alone", "transformers", each.wanted, solo.tokens),
            ("together", "alone", solo.tokens, batch.tokens),
        ):
            where = parting(each, expected, found, gaps)
            if where is not None:
                listed.append({"request": number, "run": run, "against": against, **where})
    return listed


def _chosen(budgets: ChosenBudget | WatchedAuto) -> dict[str, Any] | None:
    """How often ``auto`` chose which rows, and why."""
    if isinstance(budgets, ChosenBudget):
        return None
    told = budgets.as_dict()
    return {name: told[name] for name in ("rounds", "reasons")}
