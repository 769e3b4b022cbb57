"""From samples to figures: pooled sums, never means of means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from jetflow_tree.stats import AcceptanceStats

from jetflow_core.bench.configurations import PLAIN, Configuration
from jetflow_core.bench.measured import PHASES, Sample, Text
from jetflow_core.reports.tau import WrittenText, tau_figures

_RESAMPLES = 2000
INTERVAL = (
    f"95 % bootstrap interval of tau: {_RESAMPLES} draws of the prompts with replacement, tokens "
    "and rounds pooled in each"
)
SPEED = (
    "tokens / seconds of the rounds, prefill and setup left out, pooled over the prompts of one "
    "repeat; the median of the repeats, ratios to the plain run of the same repeat"
)
BREAK_EVEN = "seconds of a round / seconds of a plain step: the tau above which speculation pays"


@dataclass(frozen=True, slots=True)
class Measured:
    """One configuration on one prompt set (or on all of them)."""

    configuration: Configuration
    samples: Sequence[Sample]

    @property
    def texts(self) -> list[Text]:
        """All answers, in the order of the prompts."""
        return [text for sample in self.samples for text in sample.texts]


def summarise(mine: Measured, plain: Measured | None, *, timed: bool) -> dict[str, Any]:
    """The row of one configuration.

    Args:
        mine: what it did.
        plain: what plain decoding did on the same prompts; None if it was not run.
        timed: whether the seconds mean anything.
    """
    texts = mine.texts
    acceptance = AcceptanceStats()
    for sample in mine.samples:
        acceptance.merge(sample.acceptance)
    rounds = max(acceptance.rounds, 1)
    depths = sum(sample.drafted_depths for sample in mine.samples)
    return {
        "name": mine.configuration.name,
        "kind": mine.configuration.kind,
        "budget": mine.configuration.budget,
        "head": mine.configuration.head,
        **tau_figures([WrittenText(t.prompt, t.tokens, t.round_sizes) for t in texts]),
        "tau_interval": bootstrap(
            [len(text.tokens) for text in texts], [len(text.round_sizes) for text in texts]
        ),
        "texts_equal_to_plain": None if plain is None else _equal(texts, plain.texts),
        "rows_per_round": acceptance.rows / rounds,
        "depth_per_round": depths / rounds,
        "drafted_share": sum(sample.drafted_rounds for sample in mine.samples) / rounds,
        "acceptance": acceptance.to_dict(),
        "speed": speed_figures(mine, plain) if timed else None,
    }


def bootstrap(tokens: Sequence[int], rounds: Sequence[int], seed: int = 0) -> list[float]:
    """Lower and upper end of the interval of ``sum(tokens) / sum(rounds)``; see ``INTERVAL``."""
    if not sum(rounds):
        return [0.0, 0.0]
    drawn = np.random.default_rng(seed).integers(len(tokens), size=(_RESAMPLES, len(tokens)))
    some_tokens, some_rounds = np.asarray(tokens)[drawn], np.asarray(rounds)[drawn]
    taus = some_tokens.sum(axis=1) / some_rounds.sum(axis=1)
    return [float(end) for end in np.quantile(taus, (0.025, 0.975))]


def _equal(mine: Sequence[Text], plain: Sequence[Text]) -> int:
    return sum(one.tokens == other.tokens for one, other in zip(mine, plain, strict=True))


def speed_figures(mine: Measured, plain: Measured | None) -> dict[str, Any]:
    """Speed, its ratio to plain, and the split of the time."""
    timings = [timing for sample in mine.samples for timing in sample.timings]
    rounds = sum(timing.rounds for timing in timings)
    own = _speeds(mine)
    per_round = sum(timing.decode for timing in timings) / rounds
    return {
        "tokens_per_second": median(own),
        "tokens_per_second_by_repeat": own,
        "ratio_to_plain": None if plain is None else _ratios(mine, plain),
        "seconds_per_round": per_round,
        "break_even_tau": None if plain is None else per_round / _seconds_per_round(plain),
        "seconds_per_round_by_phase": {
            name: sum(getattr(timing, name) for timing in timings) / rounds for name in PHASES
        },
        "target_passes": sum(sample.timings[0].passes for sample in mine.samples),
        "prefill_seconds": sum(timing.prefill for timing in timings) / _repeats(mine),
        "setup_seconds": sum(timing.setup for timing in timings) / _repeats(mine),
        "decode_seconds": sum(timing.decode for timing in timings) / _repeats(mine),
        "repeats": _repeats(mine),
    }


def _ratios(mine: Measured, plain: Measured) -> dict[str, Any]:
    by_repeat = [a / b for a, b in zip(_speeds(mine), _speeds(plain), strict=True)]
    pairs = zip(mine.samples, plain.samples, strict=True)
    by_unit = [median(_unit_speeds(a)) / median(_unit_speeds(b)) for a, b in pairs]
    low, middle, high = np.quantile(by_unit, (0.1, 0.5, 0.9))
    return {
        "median": median(by_repeat),
        "min": min(by_repeat),
        "max": max(by_repeat),
        "by_repeat": by_repeat,
        "by_unit": {"p10": float(low), "median": float(middle), "p90": float(high)},
    }


def _repeats(mine: Measured) -> int:
    return len(mine.samples[0].timings)


def _seconds_per_round(mine: Measured) -> float:
    timings = [timing for sample in mine.samples for timing in sample.timings]
    return sum(timing.decode for timing in timings) / sum(timing.rounds for timing in timings)


def _speeds(mine: Measured) -> list[float]:
    """Tokens a second of each repeat, over all prompts."""
    speeds = []
    for repeat in range(_repeats(mine)):
        timings = [sample.timings[repeat] for sample in mine.samples]
        speeds.append(sum(t.tokens for t in timings) / sum(t.decode for t in timings))
    return speeds


def _unit_speeds(sample: Sample) -> list[float]:
    return [timing.tokens / timing.decode for timing in sample.timings]


def summarise_set(
    found: Sequence[Configuration], samples: dict[str, list[Sample]], *, timed: bool
) -> list[dict[str, Any]]:
    """Rows of all configurations, the first one's texts being everybody's prompt-lookup row."""
    measured = [Measured(each, samples[each.name]) for each in found]
    plain = next((each for each in measured if each.configuration.kind == PLAIN), None)
    return [summarise(each, plain, timed=timed) for each in measured]
