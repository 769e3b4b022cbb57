"""What one decoding of some prompts gives: texts, acceptance, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from time import perf_counter
from typing import Any

from jetflow_tree.stats import AcceptanceStats, Tally

from jetflow_core.decode import Round
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.protocols import Drafter
from jetflow_core.sampling import SamplingParams

PHASES = ("draft", "build", "verify", "accept", "commit", "other")


@dataclass(slots=True)
class Timing:
    """Seconds of one decoding of a unit, setup and prefill apart from the rounds."""

    tokens: int = 0
    rounds: int = 0
    """Rounds of requests; a pass over several requests is a round of each."""
    passes: int = 0
    draft: float = 0.0
    build: float = 0.0
    verify: float = 0.0
    accept: float = 0.0
    commit: float = 0.0
    other: float = 0.0
    """Of the loop between the phases: planning, stops, handing rounds over."""
    prefill: float = 0.0
    setup: float = 0.0
    """Before the first round: buffers, and what auto measures."""

    @property
    def decode(self) -> float:
        """Seconds of all rounds."""
        return sum(getattr(self, name) for name in PHASES)

    def add_pass(self, first: Round, seconds: float, *, admits: bool) -> None:
        """Counts a pass that took ``seconds``; if it ``admits`` a request, it also prefilled."""
        self.passes += 1
        for phase in fields(first.phases):
            setattr(self, phase.name, getattr(self, phase.name) + getattr(first.phases, phase.name))
        rest = max(0.0, seconds - first.phases.total)
        if admits:
            self.prefill += rest
        else:
            self.other += rest


@dataclass(frozen=True, slots=True)
class Text:
    """One finished answer."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    round_sizes: tuple[int, ...]


@dataclass(slots=True)
class Sample:
    """One configuration on one unit: the texts of its first run, the times of all."""

    texts: list[Text]
    acceptance: AcceptanceStats
    drafted_rounds: int
    drafted_depths: int
    """Sum over the rounds."""
    timings: list[Timing] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Sample:
        """The inverse of ``to_dict``."""
        counts = dict(raw["acceptance"])
        for name in ("by_depth", "by_rank"):
            counts[name] = [Tally(**tally) for tally in counts[name]]
        return cls(
            texts=[Text(*(tuple(value) for value in text.values())) for text in raw["texts"]],
            acceptance=AcceptanceStats(**counts),
            drafted_rounds=raw["drafted_rounds"],
            drafted_depths=raw["drafted_depths"],
            timings=[Timing(**timing) for timing in raw["timings"]],
        )


def measure(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    params: Sequence[SamplingParams],
    options: TreeOptions,
    *,
    num_slots: int,
    drafter: Drafter | None,
) -> Sample:
    """Decodes ``prompts`` once.

    Nothing but the clock is read between rounds; the counting comes when all is done.
    """
    start = perf_counter()
    source = engine.rounds(prompts, params, options, num_slots=num_slots, drafter=drafter)
    before = perf_counter()
    timing = Timing(setup=before - start)
    clocked: list[tuple[Round, float]] = []
    for result in source:
        now = perf_counter()
        clocked.append((result, now - before))
        before = now
    rounds = [result for result, _ in clocked]
    _add_passes(timing, clocked)
    sample = _counted(prompts, rounds)
    timing.tokens, timing.rounds = sample.acceptance.tokens, len(rounds)
    sample.timings.append(timing)
    return sample


def _add_passes(timing: Timing, clocked: Sequence[tuple[Round, float]]) -> None:
    """Rounds of one pass share their phases object."""
    seen: set[int] = set()
    at = 0
    while at < len(clocked):
        first = clocked[at][0]
        end = at
        while end < len(clocked) and clocked[end][0].phases is first.phases:
            end += 1
        requests = {result.request for result, _ in clocked[at:end]}
        seconds = sum(value for _, value in clocked[at:end])
        timing.add_pass(first, seconds, admits=not requests <= seen)
        seen |= requests
        at = end


def _counted(prompts: Sequence[tuple[int, ...]], rounds: Sequence[Round]) -> Sample:
    acceptance = AcceptanceStats()
    tokens: list[list[int]] = [[] for _ in prompts]
    sizes: list[list[int]] = [[] for _ in prompts]
    for result in rounds:
        acceptance.add(result.tree, result.accepted)
        tokens[result.request].extend(pick.token for pick in result.picks)
        sizes[result.request].append(len(result.picks))
    return Sample(
        texts=[
            Text(tuple(prompt), tuple(some), tuple(size))
            for prompt, some, size in zip(prompts, tokens, sizes, strict=True)
        ],
        acceptance=acceptance,
        drafted_rounds=sum(result.drafted_depths > 0 for result in rounds),
        drafted_depths=sum(result.drafted_depths for result in rounds),
    )
