"""The runs of a decode benchmark in their order: alternating, warmed up, resumable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetflow_core.bench.configurations import Configuration, turn
from jetflow_core.bench.measured import Sample, measure
from jetflow_core.bench.partial import Partial
from jetflow_core.bench.progress import Advance
from jetflow_core.bench.prompts import PromptSet
from jetflow_core.engine import Engine
from jetflow_core.sampling import MAX_SEED, SamplingParams

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How the runs are made."""

    engines: tuple[Engine, ...]
    """One a head, or one without a head."""
    found: tuple[Configuration, ...]
    depth: int | None
    slots: int
    unit: int
    """Prompts decoded together, finished together, and kept together."""
    repeats: int
    max_new_tokens: int
    temperature: float
    seed: int

    def params(self, index: int) -> SamplingParams:
        """Rules for the prompt with this index in its set; every configuration gets its seed."""
        return SamplingParams(
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
            seed=(self.seed + index) % MAX_SEED,
        )

    def engine(self, configuration: Configuration) -> Engine:
        """The engine with the configuration's head."""
        return self.engines[configuration.head or 0]


def units(prompt_set: PromptSet, size: int) -> list[range]:
    """Indices of the prompts of each unit."""
    count = len(prompt_set.prompts)
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def warm_up(plan: Plan, text: str) -> dict[str, float]:
    """Runs every configuration once, briefly; gives the seconds that its setup took.

    Measuring for auto happens here, and first passes pay for what later ones find ready.
    """
    few = SamplingParams(max_new_tokens=min(_WARM_UP_TOKENS, plan.max_new_tokens))
    setup = {}
    for configuration in plan.found:
        engine = plan.engine(configuration)
        prompt = engine.encode(text)
        sample = measure(
            engine,
            [prompt] * plan.slots,
            [few] * plan.slots,
            configuration.options(engine, plan.depth),
            num_slots=plan.slots,
            drafter=configuration.drafter(),
        )
        setup[configuration.name] = sample.timings[0].setup
    return setup


def run_sets(
    plan: Plan, sets: Sequence[PromptSet], partial: Partial, advance: Advance
) -> dict[str, dict[str, list[Sample]]]:
    """Samples by set and configuration, one a unit; finished units come from ``partial``."""
    samples: dict[str, dict[str, list[Sample]]] = {}
    number = 0
    for prompt_set in sets:
        mine: dict[str, list[Sample]] = {each.name: [] for each in plan.found}
        samples[prompt_set.name] = mine
        for indices in units(prompt_set, plan.unit):
            key = f"{prompt_set.name}:{indices.start}"
            kept = partial.get(key)
            if kept is None:
                done = _run_unit(plan, prompt_set, indices, number)
                partial.put(key, {name: sample.to_dict() for name, sample in done.items()})
            else:
                done = {name: Sample.from_dict(raw) for name, raw in kept.items()}
            for name, sample in done.items():
                mine[name].append(sample)
            number += 1
            advance()
    return samples


def _run_unit(plan: Plan, prompt_set: PromptSet, indices: range, number: int) -> dict[str, Sample]:
    done: dict[str, Sample] = {}
    for repeat in range(plan.repeats):
        for configuration in turn(plan.found, number + repeat):
            sample = _run_once(plan, prompt_set, indices, configuration)
            if configuration.name in done:
                done[configuration.name].timings += sample.timings
            else:
                done[configuration.name] = sample
    return done


def _run_once(
    plan: Plan, prompt_set: PromptSet, indices: range, configuration: Configuration
) -> Sample:
    engine = plan.engine(configuration)
    return measure(
        engine,
        [engine.encode(prompt_set.prompts[index].text) for index in indices],
        [plan.params(index) for index in indices],
        configuration.options(engine, plan.depth),
        num_slots=plan.slots,
        drafter=configuration.drafter(),
    )
