"""From tokens and rounds of each prompt to figures: pooled sums, paired prompts, every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jetflow_core.bench.summary import INTERVAL, bootstrap
from numpy.typing import NDArray

from jetflow_train.evaluation.figures import ratio_interval
from jetflow_train.evaluation.policies import HEAD_SLOTS

ALL_SETS = "all sets"

DEFINITIONS = {
    "tau": "tokens / rounds, pooled over the prompts and the seeds",
    "tau_interval": INTERVAL + "; those of all seeds of a drawn prompt",
    "tau_by_seed": "tau of each seed alone, in the order of `seeds`",
    "ratio": (
        "tau / tau of the variant that it stands against, same budget, each with its own builder, "
        "pooled over the seeds that both have"
    ),
    "ratio_interval": (
        "95 % paired bootstrap interval: 2000 draws of the prompts with replacement, the same for "
        "both, rounds of all shared seeds pooled in each; what another seed would do is no part "
        "of it, see by_seed"
    ),
    "budget": "rows of one verify pass, root included; a chain ends with its head's depth",
    "head_slots": HEAD_SLOTS,
    "walk": (
        "rounds are counted by walking the target's stored answers with trees of the head's "
        "drafts; they are those of real decoding that writes the same text"
    ),
}

Cell = tuple[str, float, int]
"""Set, temperature and budget."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Counts:
    """One variant at one budget on one set: int64 ``[seeds, prompts]`` each."""

    seeds: tuple[int, ...]
    tokens: NDArray[np.int64]
    rounds: NDArray[np.int64]

    def only(self, seeds: Sequence[int]) -> Counts:
        """The part of these seeds."""
        rows = [self.seeds.index(seed) for seed in seeds]
        return Counts(seeds=tuple(seeds), tokens=self.tokens[rows], rounds=self.rounds[rows])

    def beside(self, other: Counts) -> Counts:
        """Both, prompt after prompt; they must have the same seeds."""
        if self.seeds != other.seeds:
            raise ValueError(f"seeds {self.seeds} and {other.seeds} are not the same")
        return Counts(
            seeds=self.seeds,
            tokens=np.concatenate([self.tokens, other.tokens], axis=1),
            rounds=np.concatenate([self.rounds, other.rounds], axis=1),
        )


def figures(plan: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All figures of a report, by set and temperature.

    Args:
        plan: of the report.
        runs: of the report, with tokens and rounds of each prompt.
    """
    variants = {each["name"]: each for each in plan["variants"]}
    counted = {name: _counts([run for run in runs if run["variant"] == name]) for name in variants}
    groups = dict.fromkeys((set_, t) for cells in counted.values() for set_, t, _ in cells)
    found = []
    for name, temperature in groups:
        rows = []
        for variant, described in variants.items():
            mine = _of(counted[variant], name, temperature)
            if mine:
                against = described.get("against")
                other = _of(counted.get(against, {}), name, temperature)
                rows.append(_variant(variant, against, mine, other))
        found.append({"set": name, "temperature": temperature, "variants": rows})
    return found


def _of(counted: Mapping[Cell, Counts], name: str, temperature: float) -> dict[int, Counts]:
    """By budget."""
    return {b: counts for (s, t, b), counts in counted.items() if (s, t) == (name, temperature)}


def _counts(runs: Sequence[Mapping[str, Any]]) -> dict[Cell, Counts]:
    rows: dict[Cell, list[tuple[int, Mapping[str, Any]]]] = {}
    for run in runs:
        for row in run["policies"]:
            cell = (row["set"], row["temperature"], row["budget"])
            rows.setdefault(cell, []).append((run["seed"], row))
    found = {
        cell: Counts(
            seeds=tuple(seed for seed, _ in some),
            tokens=np.asarray([row["tokens"] for _, row in some], dtype=np.int64),
            rounds=np.asarray([row["rounds"] for _, row in some], dtype=np.int64),
        )
        for cell, some in rows.items()
    }
    sets = list(dict.fromkeys(name for name, _, _ in found))
    if len(sets) > 1:
        for temperature, budget in dict.fromkeys((t, b) for _, t, b in found):
            whole = found[sets[0], temperature, budget]
            for name in sets[1:]:
                whole = whole.beside(found[name, temperature, budget])
            found[ALL_SETS, temperature, budget] = whole
    return found


def _variant(
    name: str, against: str | None, mine: Mapping[int, Counts], other: Mapping[int, Counts]
) -> dict[str, Any]:
    return {
        "variant": name,
        "against": against,
        "seeds": list(next(iter(mine.values())).seeds),
        "budgets": [
            {"budget": budget, **_tau(counts), "ratio": ratio(counts, other.get(budget))}
            for budget, counts in mine.items()
        ],
    }


def _tau(counts: Counts) -> dict[str, Any]:
    tokens, rounds = counts.tokens.sum(axis=0), counts.rounds.sum(axis=0)
    return {
        "tau": float(tokens.sum() / rounds.sum()),
        "tau_interval": bootstrap(tokens.tolist(), rounds.tolist()),
        "tau_by_seed": (counts.tokens.sum(axis=1) / counts.rounds.sum(axis=1)).tolist(),
    }


def ratio(mine: Counts, other: Counts | None) -> dict[str, Any] | None:
    """The ratio of two taus on the same prompts; None without a common seed."""
    shared = [seed for seed in mine.seeds if other is not None and seed in other.seeds]
    if other is None or not shared:
        return None
    mine, other = mine.only(shared), other.only(shared)
    if not np.array_equal(mine.tokens, other.tokens):
        raise ValueError("the variants were walked over other texts")
    ours, theirs = mine.rounds.sum(axis=0), other.rounds.sum(axis=0)
    return {
        "ratio": float(theirs.sum() / ours.sum()),
        "interval": ratio_interval(ours.tolist(), theirs.tolist()),
        "seeds": shared,
        "by_seed": (other.rounds.sum(axis=1) / mine.rounds.sum(axis=1)).tolist(),
    }
