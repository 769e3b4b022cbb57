"""From runs to the rows of a report: sums of a repeat, then medians over the repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from jetflow_core.bench.engine.floor import Device, floor_of
from jetflow_core.bench.engine.marks import PHASES
from jetflow_core.bench.engine.runs import Run
from jetflow_core.bench.engine.settings import AUTO, PLAIN
from jetflow_core.bench.engine.subjects import Subject

DEFINITIONS: Mapping[str, str] = {
    "round": "one draft and one verify pass of all requests of the batch; of plain decoding a step",
    "budget": "rows of each request's tree, the root included; 1 is plain decoding; auto: one for "
    "the whole batch, chosen every round",
    "auto": "what was chosen in all runs, warm-up included. rounds: how often so many rows of all "
    "trees, by requests that took part; reasons: first look (nothing was seen yet), pays, probe "
    "(trees are not expected to pay and are tried), plain pays, spent (trees lost more than they "
    "may); expected_tokens: what was expected of the rounds that were read, and tokens, what came; "
    "seconds: theirs, by the measured costs; trust: drafted tokens kept over those promised; "
    "newest: what was known of every choice at the newest round; costs: seconds measured before "
    "the runs, by requests, rows of all trees, and context",
    "attention": "under used: what computes tree attention for one tree of so many rows",
    "products": "under used: what runs the products of so many rows with a matrix of out x in, of "
    "those that were measured before the runs, in a graph over matrices that no cache holds; us: "
    "microseconds of each that was right, chosen_us of the one that runs; share_of_memory_rate: "
    "bytes that it must read and write per second, over those that the device was measured to "
    "read, null where that is not known; a product that is not listed is torch's",
    "tau": "new tokens / rounds of requests: drafted tokens kept, and the correction",
    "plain": "the same engine, weights, prompts and graphs without any head: nothing is tapped, "
    "drafted or absorbed",
    "seconds_per_round": "of the host's clock: from the start of the first round, when all prompts "
    "are read and the device has nothing left to do, to the last text that counts, over the rounds "
    "between; with answers that end by themselves also what is left of longer prompts of the batch",
    "device_seconds_per_round": "the same of the device: from the event before the first round to "
    "the one behind the last, over the rounds; null without a CUDA device",
    "tokens_per_second": "new tokens of all requests / those seconds of the host's clock",
    "ratio_to_plain": "tokens_per_second / that of plain decoding in the same repeat",
    "repeats": "every repeat runs all budgets in turns, in another order each time; figures are "
    "the median of the repeats, with the least and the greatest",
    "device_busy_share": "sum of the seconds between the events around each round / seconds "
    "between the first and the last event; a round that the host started late counts its launch "
    "as busy, so starved_rounds stands beside it",
    "starved_rounds": "rounds that the host started only after the device had finished the one "
    "before; 0: the host was never in the way",
    "floor": "least seconds of a round: everything that head and target must read / bandwidth or "
    "what they must multiply / flops, whichever is more, products and attention one after the "
    "other; share = floor / seconds of a round, of the device where it was measured",
    "phases": "seconds of each phase, median over the rounds of a run of its own whose graph holds "
    "an event between phases and whose rounds are waited for one by one; head: its block and the "
    "candidates; tree: trees, masks, slots, packing; verify: the target's pass with logits; pick: "
    "the target's picks; imposed: what puts imposed picks in their place; accept: the walk; "
    "commit: keys and values moved; absorb: the head's keys and values of what was committed; "
    "state: the rest",
}
"""What the words of a report mean."""


_NAMES = {PLAIN: "plain", AUTO: "auto"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All runs of one budget."""

    budget: int
    repeats: tuple[tuple[Run, ...], ...]
    phases: tuple[Mapping[str, float], ...]
    """Of every marked round; empty: none was marked."""
    chosen: Mapping[str, Any] | None = None
    """What ``auto`` chose and why."""

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for repeat in self.repeats for run in repeat]


def row_of(
    mine: Measured, plain: Measured | None, subject: Subject, device: Device | None, requests: int
) -> dict[str, Any]:
    """The row of one budget.

    Args:
        mine: its runs.
        plain: those of plain decoding; None: it was not measured.
        subject: what was measured.
        device: how fast the device is; None: nobody said so.
        requests: of a batch.
    """
    runs = mine.runs
    accepted = [count for run in runs for count in run.accepted]
    tokens, steps = sum(run.tokens for run in runs), len(accepted)
    rows = fmean(count for run in runs for count in run.rows)
    context = fmean(run.context for run in runs)
    wall = _spread([_sum(repeat, "seconds") / _sum(repeat, "rounds") for repeat in mine.repeats])
    on_device = _device_seconds(mine)
    speeds = _speeds(mine)
    return {
        "name": _NAMES.get(mine.budget, f"tree-{mine.budget}"),
        "budget": told_budget(mine.budget),
        "rows_per_round": rows,
        "tau": tokens / steps,
        "wanted": _wanted(mine, subject),
        "accepted": [Counter(accepted)[length] for length in range(max(accepted) + 1)],
        "tokens": tokens,
        "rounds": sum(run.rounds for run in runs),
        "seconds_per_round": wall,
        "device_seconds_per_round": on_device,
        "tokens_per_second": _spread(speeds),
        "ratio_to_plain": None
        if plain is None
        else _spread([a / b for a, b in zip(speeds, _speeds(plain), strict=True)]),
        "device_busy_share": _busy(mine),
        "starved_rounds": None
        if on_device is None
        else sum(run.device.starved for run in runs if run.device),
        "floor": None
        if device is None
        else _floor(mine, subject, device, rows, context, requests, on_device or wall),
        "phases": _phases(mine.phases),
        "auto": mine.chosen,
        "context": context,
        "texts_equal_to_plain": _equal(mine, plain, subject),
    }


def told_budget(budget: int) -> int | str:
    """A budget as reports tell it."""
    return "auto" if budget == AUTO else budget


def _spread(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median": median(values), "min": min(values), "max": max(values),
        "by_repeat": list(values),
    }  # fmt: skip


def _sum(runs: Sequence[Run], name: str) -> float:
    return float(sum(getattr(run, name) for run in runs))


def _speeds(mine: Measured) -> list[float]:
    return [_sum(repeat, "tokens") / _sum(repeat, "seconds") for repeat in mine.repeats]


def _device_seconds(mine: Measured) -> dict[str, Any] | None:
    found = [
        sum(run.device.seconds for run in repeat if run.device) / _sum(repeat, "rounds")
        for repeat in mine.repeats
        if all(run.device for run in repeat)
    ]
    return _spread(found) if found else None


def _busy(mine: Measured) -> dict[str, Any] | None:
    found = [
        sum(run.device.busy for run in repeat if run.device)
        / sum(run.device.seconds for run in repeat if run.device)
        for repeat in mine.repeats
        if all(run.device for run in repeat)
    ]
    return _spread(found) if found else None


def _wanted(mine: Measured, subject: Subject) -> dict[str, Any] | None:
    """What was imposed, and how much of it trees could not hold."""
    model = subject.model
    if model is None or mine.budget == PLAIN:
        return None
    if mine.budget == AUTO:
        unknown = dict.fromkeys(("at_least", "tau", "drawn_tau", "cut_rounds"))
        return {"source": "scaled by each round's own trees", **unknown}
    at_least = model.at_least(mine.budget)
    pairs = [pair for run in mine.runs for pair in zip(run.wanted, _by_request(run), strict=True)]
    return {
        "source": "file" if mine.budget == model.trace.budget else "scaled by the table's trees",
        "at_least": list(at_least),
        "tau": 1.0 + sum(at_least),
        "drawn_tau": 1.0 + fmean(wanted for wanted, _ in pairs),
        "cut_rounds": sum(kept < wanted for wanted, kept in pairs),
    }


def _by_request(run: Run) -> list[int]:
    """What was kept, all rounds of the first request, then of the next."""
    requests = len(run.texts)
    return [kept for first in range(requests) for kept in run.accepted[first::requests]]


def _floor(
    mine: Measured,
    subject: Subject,
    device: Device,
    rows: float,
    context: float,
    requests: int,
    seconds: Mapping[str, Any],
) -> dict[str, Any]:
    floor = floor_of(
        subject,
        rows=max(round(rows), 1),
        context=round(context),
        requests=requests,
        plain=mine.budget == PLAIN,
    )
    return {
        "seconds": floor.seconds(device),
        "share": floor.seconds(device) / seconds["median"],
        "target_bytes": floor.target.bytes,
        "head_bytes": None if floor.head is None else floor.head.bytes,
        "bytes_per_second": device.bytes_per_second,
        "flops_per_second": device.flops_per_second,
    }


def _phases(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any] | None:
    if not rounds:
        return None
    seconds = {name: median(each[name] for each in rounds) for name in PHASES}
    whole = median(sum(each.values()) for each in rounds)
    return {"rounds": len(rounds), "seconds": seconds, "whole": whole}


def _equal(mine: Measured, plain: Measured | None, subject: Subject) -> int | None:
    """Answers of the first repeat that are those of plain decoding; random weights claim none."""
    if plain is None or subject.endless:
        return None
    texts = [text for run in mine.repeats[0] for text in run.texts]
    others = [text for run in plain.repeats[0] for text in run.texts]
    return sum(one == other for one, other in zip(texts, others, strict=True))
