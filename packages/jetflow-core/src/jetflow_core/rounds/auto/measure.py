"""What rounds cost on this device: every size that may be chosen, run with made-up requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import torch

from jetflow_core.rounds.auto.batch_trees import BatchTrees
from jetflow_core.rounds.auto.costs import RoundCosts, totals_for, tree_rows_for
from jetflow_core.rounds.graphs import RoundPrograms
from jetflow_core.rounds.laws import Picks
from jetflow_core.rounds.round import RoundProgram, RoundSize
from jetflow_core.rounds.state import RoundState
from jetflow_core.rounds.transfer import Upload

_SHORT, _LONG = 32, 8192
_RUNS, _RUNS_OF_SLOW, _SLOW = 5, 2, 0.1
_TOO_DEAR = 6.0
"""A round that takes so many times a plain one is not worth it, and larger ones are not either."""
_PLENTY = 2**30

Timed = Callable[[int, int, int, int], float]
"""Seconds of a round: requests, rows of all trees, rows of one, context."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RoundTimer:
    """Runs rounds of made-up requests while nobody is in any slot.

    They begin at the pages' first rows and may share pages: what they write is nobody's.
    """

    program: RoundProgram
    programs: RoundPrograms
    state: RoundState
    shared: BatchTrees
    tables: Upload
    budgets: Upload
    totals: Upload
    pages: int
    """Pages of every pool."""
    page: int
    changes: tuple[torch.Tensor, ...]
    """What a round changes."""

    def __call__(self, requests: int, total: int, tree_rows: int, context: int) -> float:
        """Seconds of such a round, the median of some."""
        self._prepare(total, tree_rows)
        width = self.state.page_table.shape[1]
        rows = context + max(tree_rows, 1) + 1
        size = self.programs.size(
            requests=requests,
            rows=total,
            tree_rows=tree_rows,
            pages=min(-(-rows // self.page) + 1, width),
        )
        # The first run finds nothing ready, and on a GPU is where the round is captured.
        self._once(size, requests, context)
        runs = [self._once(size, requests, context)]
        count = _RUNS if runs[0] < _SLOW else _RUNS_OF_SLOW
        while len(runs) < count:
            runs.append(self._once(size, requests, context))
        return median(runs)

    def clear(self) -> None:
        """Nobody is in any slot, and nothing was seen."""
        self.state.live.zero_()
        self.state.record.zero_()
        self.shared.acceptance.forget()

    def _prepare(self, total: int, tree_rows: int) -> None:
        slots, width = self.state.page_table.shape
        numbers = np.arange(slots * width, dtype=np.int32) % self.pages
        self.tables.push(numbers.reshape(slots, width))
        self.budgets.push(np.full(slots, tree_rows, dtype=np.int32))
        self.totals.push(np.array([total], dtype=np.int32))

    def _once(self, size: RoundSize, requests: int, context: int) -> float:
        for slot in range(requests):
            self.state.begin(
                slot, root=0, prefix_len=context, remaining=_PLENTY, temperature=0.0, seed=0,
                stops=(),
            )  # fmt: skip
        self.state.live[requests:].fill_(False)
        device = self.state.live.device
        key, round_ = (size, Picks()), partial(self.program.run, size, Picks())
        run = partial(self.programs.run, key, round_, self.changes)
        if device.type != "cuda":
            start = perf_counter()
            run()
            return perf_counter() - start
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        stream = torch.cuda.current_stream(device)
        began.record(stream)
        run()
        ended.record(stream)
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3


def contexts_for(context: int, *, steps: int) -> tuple[int, ...]:
    """Committed rows at which rounds are measured: few, and as many as are usual.

    Args:
        context: rows that a request may have.
        steps: most tokens of a round.
    """
    last = max(min(context - steps - 1, _LONG), 0)
    first = min(_SHORT, last)
    return (first,) if first == last else (first, last)


def measured_costs(
    timed: Timed,
    requests: Iterable[int],
    contexts: tuple[int, ...],
    *,
    most: int,
    most_total: int,
) -> RoundCosts:
    """Costs of all rounds of these numbers of requests.

    Args:
        timed: measures one.
        requests: each at least 1.
        contexts: one or two, ascending.
        most: rows of one tree at most.
        most_total: rows of all trees at most.
    """
    seconds: dict[tuple[int, int], tuple[float, ...]] = {}
    for count in requests:
        plain = tuple(timed(count, count, 1, context) for context in contexts)
        found: dict[int, tuple[float, ...]] = {}
        for total in totals_for(count, most=most, most_total=most_total):
            rows = tree_rows_for(count, total, most=most)
            found[total] = tuple(timed(count, total, rows, context) for context in contexts)
            if min(a / b for a, b in zip(found[total], plain, strict=True)) > _TOO_DEAR:
                break
        seconds[count, count] = plain
        seconds |= {(count, total): times for total, times in _rising(found).items()}
    return RoundCosts(contexts=contexts, seconds=seconds)


def _rising(found: dict[int, tuple[float, ...]]) -> dict[int, tuple[float, ...]]:
    """No round costs more than one of more rows, which could be run in its place."""
    if not found:
        return found
    table = np.array([found[total] for total in sorted(found)])
    least = np.minimum.accumulate(table[::-1])[::-1]
    return {
        total: tuple(map(float, line)) for total, line in zip(sorted(found), least, strict=True)
    }
