"""``jetflow bench lossless``: tree decoding writes what transformers' greedy generate writes.

Every drafter at every budget, token for token, against answers made in other processes by code
that shares nothing with this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from jetflow_core.bench.checks import check_at_least, check_device, check_dtype
from jetflow_core.bench.grid import DRAFTERS, Case, Outcome, Task
from jetflow_core.bench.plain_side import Answer, plain_answers
from jetflow_core.bench.progress import bar
from jetflow_core.bench.prompts import PromptSet, load_sets
from jetflow_core.bench.workers import Workplace, run_tasks
from jetflow_core.defaults import default_head, default_target, is_default_target
from jetflow_core.head.checkpoint import read_config
from jetflow_core.loading import load_config, load_tokenizer
from jetflow_core.reports.provenance import provenance
from jetflow_core.support import check_supported

FORMAT = "jetflow-bench-lossless/1"
EXACT_DTYPES = ("float32", "float64")
_CASES_A_TASK = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class LosslessSettings:
    """What the grid is made of.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    prompts: tuple[str, ...] = ("builtin",)
    limit: int | None = None
    seed: int = 0
    target: str | None = None
    head: str | None = None
    device: str = "cpu"
    dtype: str = "float32"
    budgets: tuple[int, ...] = (1, 2, 16, 64, 256)
    drafters: tuple[str, ...] = DRAFTERS
    max_new_tokens: int = 128
    slots: int = 1
    processes: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        check_device(self.device)
        for name in ("max_new_tokens", "slots", "processes", "threads"):
            check_at_least(name, getattr(self, name), 1)


def run_lossless(settings: LosslessSettings) -> dict[str, Any]:
    """The report of the whole grid, ready for JSON.

    ``passed`` says whether there was no difference. In float32 and float64 a difference is a
    fault; in shorter types rounding alone can turn a pick where the logit gap is small.

    Raises:
        ValueError: something cannot be loaded or read; named.
    """
    sets = load_sets(settings.prompts, limit=settings.limit, seed=settings.seed)
    place = _workplace(settings)
    # A folder that is no target shows now, in one line, not in the words of another process.
    check_supported(load_config(place.target))
    load_tokenizer(place.target)
    start = perf_counter()
    cases, plain_settings = _plain_cases(settings, place, sets)
    plain_done = perf_counter()
    tasks = _tasks(settings, len(cases))
    outcomes = []
    with bar("tree decoding", len(tasks)) as advance:
        for outcome in run_tasks(place, cases, tasks, processes=settings.processes):
            outcomes.append(outcome)
            advance()
    seconds = {"plain_side": plain_done - start, "grid": perf_counter() - plain_done}
    return _report(settings, place, cases, plain_settings, outcomes, seconds)


def _workplace(settings: LosslessSettings) -> Workplace:
    head = settings.head
    if head is None and "head" in settings.drafters:
        if not is_default_target(settings.target):
            raise ValueError("the drafter head needs --head: this target has no default head")
        head = str(default_head())
    if head is not None:
        # A wrong path shows now, not after the plain side has done its work.
        read_config(Path(head))
    cores = torch.get_num_threads()
    return Workplace(
        target=str(default_target()) if settings.target is None else settings.target,
        head=head,
        device=settings.device,
        dtype=settings.dtype,
        max_new_tokens=settings.max_new_tokens,
        num_slots=settings.slots,
        threads=settings.threads or (cores if settings.processes == 1 else 1),
    )


def _plain_cases(
    settings: LosslessSettings, place: Workplace, sets: Sequence[PromptSet]
) -> tuple[list[Case], dict[str, Any]]:
    named = [(found.name, prompt) for found in sets for prompt in found.prompts]
    with bar("plain generate", len(named)) as advance:
        answers, used = plain_answers(
            [prompt.text for _, prompt in named],
            target=place.target,
            dtype=place.dtype,
            device=place.device,
            max_new_tokens=place.max_new_tokens,
            threads=place.threads,
            processes=settings.processes,
            progress=advance,
        )
    pairs = zip(named, answers, strict=True)
    return [Case(name, prompt.name, prompt.text, answer) for (name, prompt), answer in pairs], used


def _tasks(settings: LosslessSettings, count: int) -> list[Task]:
    share = -(-count // settings.processes)
    size = max(settings.slots, min(_CASES_A_TASK, share))
    groups = [tuple(range(count))[start : start + size] for start in range(0, count, size)]
    tasks = [
        Task(drafter, budget, group)
        for drafter in settings.drafters
        for budget in settings.budgets
        for group in groups
    ]
    # Wrong drafts and plain steps take the most rounds, so they go first.
    return sorted(tasks, key=lambda task: (task.drafter != "wrong", task.budget))


def _report(
    settings: LosslessSettings,
    place: Workplace,
    cases: Sequence[Case],
    plain_settings: dict[str, Any],
    outcomes: Sequence[Outcome],
    seconds: dict[str, float],
) -> dict[str, Any]:
    differences = [found for outcome in outcomes for found in outcome.differences]
    return {
        "format": FORMAT,
        "passed": not differences,
        "exact": settings.dtype in EXACT_DTYPES,
        "answers_compared": sum(len(outcome.task.cases) for outcome in outcomes),
        "answers_different": len(differences),
        "tokens_compared": sum(outcome.tokens for outcome in outcomes),
        "cells": _cells(settings, outcomes),
        "differences": [asdict(found) for found in differences],
        "plain_side": {
            "what": "transformers' generate, greedy, one prompt at a time, in other processes",
            "prompts": len(cases),
            "tokens": sum(len(case.answer.tokens) for case in cases),
            **plain_settings,
            **_gap_figures([case.answer for case in cases]),
        },
        "settings": asdict(settings),
        "used": {
            **asdict(place),
            "fp32_precision": sorted({outcome.fp32_precision for outcome in outcomes}),
            "processes": settings.processes,
        },
        "seconds": seconds,
        "provenance": provenance(settings.device),
    }


def _cells(settings: LosslessSettings, outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    cells = []
    for drafter in settings.drafters:
        for budget in settings.budgets:
            mine = [o for o in outcomes if (o.task.drafter, o.task.budget) == (drafter, budget)]
            tokens, rounds = sum(o.tokens for o in mine), sum(o.rounds for o in mine)
            cells.append({
                "drafter": drafter,
                "budget": budget,
                "answers": sum(len(o.task.cases) for o in mine),
                "different": sum(len(o.differences) for o in mine),
                "tokens": tokens,
                "rounds": rounds,
                "tau": tokens / rounds if rounds else 0.0,
                "scattered_rounds": sum(o.scattered for o in mine),
            })  # fmt: skip
    return cells


def _gap_figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """How close picks were: a pick can only turn where the gap is near the rounding error."""
    gaps = sorted(gap for answer in answers for gap in answer.gaps)
    return {
        "smallest_logit_gap": gaps[0] if gaps else None,
        "logit_gaps_below_1e-3": sum(gap < 1e-3 for gap in gaps),
    }
