"""The benchmark of the fast engine: all budgets in turns, then their phases, then the report."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from jetflow_core.bench.checks import check_round
from jetflow_core.bench.engine.acceptance import Trace, read_trace
from jetflow_core.bench.engine.floor import told_device
from jetflow_core.bench.engine.marks import MarkedPrograms
from jetflow_core.bench.engine.runs import Run, Unit, run_unit, units
from jetflow_core.bench.engine.schema import FORMAT, IMPOSED, OWN, check_report
from jetflow_core.bench.engine.settings import AUTO, PLAIN, EngineSettings
from jetflow_core.bench.engine.sides import (
    Side,
    WatchedAuto,
    auto_side,
    marked_side,
    plain_side,
    tree_side,
)
from jetflow_core.bench.engine.subjects import Subject, random_subject, real_subject
from jetflow_core.bench.engine.summary import DEFINITIONS, Measured, row_of, told_budget
from jetflow_core.bench.progress import Advance, bar
from jetflow_core.reports.files import check_output, write_report
from jetflow_core.reports.provenance import provenance
from jetflow_core.stacks import StackShape

_WARM_UP_ROUNDS = 3
_MARKED_ROUNDS = 16

_IMPOSED = (
    "ACCEPTANCE IS IMPOSED. Target and head have random weights; how many drafted tokens a round "
    "keeps is drawn from the trace, and the head's scores are a table that fits the trace, so that "
    "trees are as deep as a trained head's. Every tree of a budget therefore has the same shape. "
    "Head, top-K, tree, verify, walk and the commit of rows that are not adjacent are computed as "
    "they always are; what imposing costs is part of the round, and a phase of its own. Seconds of "
    "a round are measured; tau is an assumption, and so are tokens a second as far as they follow "
    "from it. Nothing is said of what the tokens are."
)
_OWN = "Acceptance is the subject's own: nothing is imposed."


def run_engine(
    settings: EngineSettings,
    out: str | Path | None = None,
    *,
    shape: StackShape | None = None,
) -> dict[str, Any]:
    """The report of all runs.

    Args:
        settings: what is measured.
        out: where the report goes, whole, after every repeat and at the end.
        shape: sizes that take those of the settings' shape, for tests on small machines.

    Raises:
        ValueError: something cannot be loaded, read or written, or does not fit; named, before
            any run.
    """
    file = None if out is None else check_output(out)
    check = partial(check_round, settings.device, page=settings.page, batch=settings.batch)
    check(dtype=settings.dtype)
    trace = None
    if settings.acceptance is not None and settings.trace is not None:
        trace = read_trace(settings.acceptance, settings.trace)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    subject = (
        real_subject(settings)
        if settings.shape is None
        else random_subject(settings, trace if settings.drafted else None, shape)
    )
    dims = {"target": subject.stack.shape.head_dim}
    if subject.head is not None:
        dims["head"] = subject.head.config.head_dim
    check(head_dims=dims)
    used = _used(settings, subject)
    plan = units(subject, settings.batch, settings.rounds)
    turns = len(settings.budgets) * len(plan) * (settings.repeats + 1)
    with bar("rounds", turns) as advance:
        found, chosen = _timed(settings, subject, plan, used, file, advance)
        gc.collect()
        phases = _marked(settings, subject, plan[0])
    report = _report(settings, subject, found, phases, used, chosen, finished=True)
    check_report(report)
    if file is not None:
        write_report(file, report)
    return report


def _timed(
    settings: EngineSettings,
    subject: Subject,
    plan: list[Unit],
    used: dict[str, Any],
    file: Path | None,
    advance: Advance,
) -> tuple[dict[int, list[tuple[Run, ...]]], dict[str, Any] | None]:
    """All repeats of all budgets, in turns; and what ``auto`` chose, if it took part."""
    sides = _sides(settings, subject)
    some = sides[settings.budgets[0]].runner
    used |= {
        "steps": some.backend.name,
        "programs": some.programs.mode,
        "attention": {str(rows): some.attention_version(rows) for rows in (1, 64, 256)},
    }
    for budget, side in sides.items():
        for unit in plan:
            run_unit(side, subject, _short(unit), budget, settings.seed)
            advance()
    found: dict[int, list[tuple[Run, ...]]] = {budget: [] for budget in settings.budgets}
    for repeat in range(settings.repeats):
        runs: dict[int, list[Run]] = {budget: [] for budget in settings.budgets}
        for number, unit in enumerate(plan):
            for budget in _turn(settings.budgets, repeat + number):
                seed = settings.seed + repeat
                runs[budget].append(run_unit(sides[budget], subject, unit, budget, seed))
                advance()
        for budget, mine in runs.items():
            found[budget].append(tuple(mine))
        if file is not None:
            write_report(
                file, _report(settings, subject, found, {}, used, _chosen(sides), finished=False)
            )
    return found, _chosen(sides)


def _chosen(sides: Mapping[int, Side]) -> dict[str, Any] | None:
    """What ``auto`` chose and why, with what rounds cost."""
    budgets = sides[AUTO].budgets if AUTO in sides else None
    if not isinstance(budgets, WatchedAuto) or budgets.costs is None:
        return None
    return {**budgets.as_dict(), "costs": budgets.costs.to_dict()}


def _sides(settings: EngineSettings, subject: Subject) -> dict[int, Side]:
    sides = {}
    trees = tree_side(subject, settings) if settings.sizes else None
    for budget in settings.budgets:
        if budget == PLAIN:
            sides[budget] = plain_side(subject, settings)
        elif budget == AUTO:
            sides[budget] = auto_side(subject, settings)
        elif trees is not None:
            sides[budget] = trees
    return sides


def _marked(
    settings: EngineSettings, subject: Subject, unit: Unit
) -> dict[int, tuple[Mapping[str, float], ...]]:
    """Phases of some rounds of each budget, on runners of their own."""
    found: dict[int, tuple[Mapping[str, float], ...]] = {}
    if PLAIN in settings.budgets:
        side = marked_side(subject, settings, plain=True)
        found[PLAIN] = _phases(side, settings, subject, unit, PLAIN)
        # Two sides at once might not fit beside each other.
        del side
    if settings.sizes:
        side = marked_side(subject, settings, plain=False)
        for budget in settings.sizes:
            found[budget] = _phases(side, settings, subject, unit, budget)
    return found


def _phases(
    side: Side, settings: EngineSettings, subject: Subject, unit: Unit, budget: int
) -> tuple[Mapping[str, float], ...]:
    assert isinstance(side.programs, MarkedPrograms)
    run_unit(side, subject, _short(unit), budget, settings.seed)
    side.programs.seen.clear()
    rounds = None if unit.rounds is None else min(unit.rounds, _MARKED_ROUNDS)
    some = Unit(prompts=unit.prompts, rounds=rounds)
    run = run_unit(side, subject, some, budget, settings.seed)
    return tuple(side.programs.seen[: run.rounds])


def _short(unit: Unit) -> Unit:
    """First rounds pay for what later ones find ready."""
    return Unit(prompts=unit.prompts, rounds=min(unit.rounds or _WARM_UP_ROUNDS, _WARM_UP_ROUNDS))


def _turn(budgets: tuple[int, ...], number: int) -> list[int]:
    """The order of a turn: rotated, and every other time backwards."""
    start = number % len(budgets)
    order = [*budgets[start:], *budgets[:start]]
    return order[::-1] if number % 2 else order


def _report(
    settings: EngineSettings,
    subject: Subject,
    found: Mapping[int, list[tuple[Run, ...]]],
    phases: Mapping[int, tuple[Mapping[str, float], ...]],
    used: Mapping[str, Any],
    chosen: Mapping[str, Any] | None,
    *,
    finished: bool,
) -> dict[str, Any]:
    measured = {
        budget: Measured(
            budget=budget,
            repeats=tuple(repeats),
            phases=phases.get(budget, ()),
            chosen=chosen if budget == AUTO else None,
        )
        for budget, repeats in found.items()
    }
    device = told_device(settings)
    return {
        "format": FORMAT,
        "finished": finished,
        "acceptance": _acceptance(subject),
        "settings": asdict(settings) | {"budgets": [told_budget(b) for b in settings.budgets]},
        "used": {**used, "products": list(subject.stack.ops.products())},
        "definitions": dict(DEFINITIONS),
        "notes": _notes(measured),
        "rows": [
            row_of(mine, measured.get(PLAIN), subject, device, settings.batch)
            for mine in measured.values()
        ],
        "provenance": provenance(settings.device),
    }


def _acceptance(subject: Subject) -> dict[str, Any]:
    model = subject.model
    if model is None:
        return {"kind": OWN, "statement": _OWN, "trace": None, "table": None}
    trace: Trace = model.trace
    return {
        "kind": IMPOSED,
        "statement": _IMPOSED,
        "trace": {**asdict(trace), "tau": trace.tau, "depth": trace.depth},
        "table": {"exponent": model.exponent, "log_probs": model.log_probs.tolist()},
    }


def _notes(measured: Mapping[int, Measured]) -> list[str]:
    notes = []
    for budget, mine in measured.items():
        starved = sum(run.device.starved for run in mine.runs if run.device)
        if starved:
            notes.append(
                f"budget {told_budget(budget)}: the device waited for the host before {starved} of "
                f"{sum(run.rounds for run in mine.runs)} rounds"
            )
        cut = sum(sum(run.wanted) > sum(run.accepted) for run in mine.runs if run.wanted)
        if cut:
            notes.append(
                f"budget {budget}: trees were not as deep as some rounds wanted, so tau is below "
                "what was drawn; see wanted.cut_rounds"
            )
    return notes


def _used(settings: EngineSettings, subject: Subject) -> dict[str, Any]:
    head, stack = subject.head, subject.stack
    return {
        "subject": subject.name,
        "shape": asdict(stack.shape),
        "dtype": str(stack.dtype).removeprefix("torch."),
        "device": str(stack.device),
        "threads": torch.get_num_threads(),
        "layers": subject.layers.name,
        "prompts": len(subject.prompts),
        "batch": settings.batch,
        "head": None
        if head is None
        else {
            "name": head.path.name,
            "depth": subject.depth,
            "layers": head.config.num_layers,
            "path_rank": head.config.path_rank,
            "candidates": head.config.candidates,
            "taps": list(head.config.target_layer_ids),
            "parameters": sum(each.numel() for each in head.head.parameters()),
        },
    }
