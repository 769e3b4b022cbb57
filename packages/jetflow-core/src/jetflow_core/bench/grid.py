"""One cell of the lossless grid: a drafter at a budget, token for token against the plain side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch

from jetflow_core.bench.plain_side import Answer
from jetflow_core.drafters.probe import always_wrong, oracle, random_tree
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.protocols import Drafter
from jetflow_core.sampling import SamplingParams

DRAFTERS = ("head", "wrong", "random", "oracle")
_PROBES = {"wrong": always_wrong, "random": random_tree, "oracle": oracle}


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt of the grid with what the plain side wrote."""

    set_name: str
    name: str
    text: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class Task:
    """Some prompts of one cell."""

    drafter: str
    budget: int
    cases: tuple[int, ...]
    """Their indices."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which an answer leaves the plain one."""

    drafter: str
    budget: int
    set_name: str
    prompt: str
    position: int
    expected: int | None
    """None: the plain answer had ended."""
    found: int | None
    """None: our answer had ended."""
    logit_gap: float | None
    """The plain side's best logit less its second best there; None past its end."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task found."""

    task: Task
    differences: tuple[Difference, ...]
    tokens: int
    rounds: int
    scattered: int
    """Rounds whose kept rows were not the first rows of the tree: they had to be moved."""
    fp32_precision: str
    """How float32 products were computed: "ieee" without TF32."""


def run_task(
    engine: Engine, cases: Sequence[Case], task: Task, *, max_new_tokens: int, num_slots: int
) -> Outcome:
    """Decodes the prompts of ``task`` and compares.

    Raises:
        ValueError: a prompt's token ids are not the plain side's.
    """
    chosen = [cases[index] for index in task.cases]
    for case in chosen:
        if engine.encode(case.text) != case.answer.prompt:
            raise ValueError(f"prompt {case.name} of {case.set_name} has other ids on either side")
    results = engine.generate_batch(
        [case.answer.prompt for case in chosen],
        SamplingParams(max_new_tokens=max_new_tokens),
        TreeOptions(budget=task.budget),
        num_slots=num_slots,
        drafter=_drafter(engine, task.drafter, chosen),
    )
    pairs = list(zip(chosen, results, strict=True))
    found = (first_difference(task, case, result) for case, result in pairs)
    return Outcome(
        task=task,
        differences=tuple(difference for difference in found if difference is not None),
        tokens=sum(len(result.tokens) for result in results),
        rounds=sum(len(result.rounds) for result in results),
        scattered=sum(_scattered(result) for result in results),
        fp32_precision=torch.backends.cuda.matmul.fp32_precision,
    )


def first_difference(task: Task, case: Case, result: Generation) -> Difference | None:
    """Where ``result`` leaves the plain answer; None if it never does."""
    gaps = case.answer.gaps
    for at, (expected, found) in enumerate(zip_longest(case.answer.tokens, result.tokens)):
        if expected != found:
            gap = gaps[at] if at < len(gaps) else None
            return Difference(task.drafter, task.budget, case.set_name, case.name, at, expected,
                              found, gap)  # fmt: skip
    return None


def _drafter(engine: Engine, name: str, cases: Sequence[Case]) -> Drafter | None:
    if name == "head":
        return None
    answers = {case.answer.prompt: case.answer.tokens for case in cases}
    return _PROBES[name](answers, engine.target.vocab_size)


def _scattered(result: Generation) -> int:
    return sum(
        any(row != depth for depth, row in enumerate(r.accepted.nodes, 1)) for r in result.rounds
    )
