"""One run of one side: requests decoded together, and what the clock and the records say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import cast

from jetflow_core.bench.engine.marks import MarkedPrograms
from jetflow_core.bench.engine.settings import AUTO, PLAIN
from jetflow_core.bench.engine.sides import ChosenBudget, Side
from jetflow_core.bench.engine.subjects import Subject
from jetflow_core.bench.engine.timed import DeviceTime
from jetflow_core.rounds import RoundRequest, Step
from jetflow_core.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one run gave."""

    seconds: float
    """From the start of the first round, prompts being read, to the last text that counts."""
    rounds: int
    """Rounds of the batch until then."""
    device: DeviceTime | None
    accepted: tuple[int, ...]
    """Drafted rows kept, of each round of each request."""
    rows: tuple[int, ...]
    """Rows verified, likewise."""
    texts: tuple[tuple[int, ...], ...]
    """New tokens of each request."""
    wanted: tuple[int, ...]
    """Rows that were to be kept, likewise; empty where acceptance is not imposed."""
    context: float
    """Committed rows of a request, the mean over its rounds."""

    @property
    def tokens(self) -> int:
        """New tokens of all requests."""
        return sum(map(len, self.texts))


@dataclass(frozen=True, kw_only=True, slots=True)
class Unit:
    """Requests that are decoded together."""

    prompts: tuple[tuple[int, ...], ...]
    rounds: int | None
    """Rounds of each; None: until each has ended."""


def units(subject: Subject, batch: int, rounds: int) -> list[Unit]:
    """The runs that a repeat is made of: one with imposed lengths, or one for each batch."""
    prompts = subject.prompts
    if subject.endless:
        return [Unit(prompts=prompts, rounds=rounds)]
    return [
        Unit(prompts=prompts[start : start + batch], rounds=None)
        for start in range(0, len(prompts), batch)
    ]


def run_unit(side: Side, subject: Subject, unit: Unit, budget: int, seed: int) -> Run:
    """Decodes a unit once.

    Args:
        side: what decodes.
        subject: whose prompts these are.
        unit: who takes part.
        budget: rows of each tree; ``AUTO`` of a side that chooses them.
        seed: of an imposed acceptance.
    """
    _restart(side, subject, budget, seed)
    requests = [_request(subject, prompt) for prompt in unit.prompts]
    source = cast("Generator[Step]", side.runner.run(requests))
    steps: list[Step] = []
    seen: Counter[int] = Counter()
    end = perf_counter()
    for step in source:
        now = perf_counter()
        if unit.rounds is None or seen[step.request] < unit.rounds:
            end = now
            steps.append(step)
            seen[step.request] += 1
        if unit.rounds is not None and len(steps) == unit.rounds * len(unit.prompts):
            break
    source.close()
    return _told(side, unit, steps, seen, end)


def _restart(side: Side, subject: Subject, budget: int, seed: int) -> None:
    if isinstance(side.budgets, ChosenBudget):
        side.budgets.restart(budget)
    else:
        side.budgets.begin_run()
    if not isinstance(side.programs, MarkedPrograms):
        side.programs.restart()
    if side.imposed is not None and subject.model is not None:
        model = subject.model
        side.imposed.restart(model.per_mass() if budget == AUTO else model.at_least(budget), seed)


def _request(subject: Subject, prompt: Sequence[int]) -> RoundRequest:
    stack = subject.stack
    return RoundRequest.of(
        prompt,
        SamplingParams(max_new_tokens=subject.new_tokens, seed=0),
        eos_ids=stack.eos_token_ids,
        vocab_size=stack.vocab_size,
    )


def _told(side: Side, unit: Unit, steps: list[Step], seen: Counter[int], end: float) -> Run:
    rounds = _rounds_of(side.budgets.rounds, seen)
    timed = None if isinstance(side.programs, MarkedPrograms) else side.programs
    texts: list[list[int]] = [[] for _ in unit.prompts]
    contexts = []
    for step in steps:
        contexts.append(len(unit.prompts[step.request]) + len(texts[step.request]) - 1)
        texts[step.request].extend(step.tokens)
    return Run(
        seconds=0.0 if timed is None or timed.started is None else end - timed.started,
        rounds=rounds,
        device=None if timed is None else timed.device_time(rounds),
        accepted=tuple(step.accepted for step in steps),
        rows=tuple(step.rows for step in steps),
        texts=tuple(map(tuple, texts)),
        wanted=_wanted(side, unit),
        context=sum(contexts) / len(contexts),
    )


def _wanted(side: Side, unit: Unit) -> tuple[int, ...]:
    if side.imposed is None or unit.rounds is None:
        return ()
    # What a chosen budget keeps follows from its trees, on the device.
    if not isinstance(side.budgets, ChosenBudget) or side.budgets.rows == PLAIN:
        return ()
    return tuple(side.imposed.wanted[: len(unit.prompts), : unit.rounds].flatten().tolist())


def _rounds_of(shares: Sequence[tuple[int, ...]], steps: Counter[int]) -> int:
    """Rounds up to the last one of which a step counts: a request's k-th step is of its k-th."""
    found: Counter[int] = Counter()
    last = 0
    for number, requests in enumerate(shares, 1):
        for request in requests:
            found[request] += 1
            if found[request] <= steps[request]:
                last = number
    return last
