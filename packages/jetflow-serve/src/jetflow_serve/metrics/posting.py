"""What a worker writes on its board: its counters as series of metrics."""

from __future__ import annotations

from collections.abc import Iterable

from jetflow_serve.counters import Counters
from jetflow_serve.metrics import names
from jetflow_serve.metrics.board import Series
from jetflow_serve.reasons import REASONS, Shape

WORKER_PART = "worker"
"""The part of an engine that posts these."""
AUDIT_PART = "audit"
PARTS = (WORKER_PART, AUDIT_PART)
"""All parts of an engine that post anything."""


def worker_series(depth: int, budget: int, whys: Iterable[str] = ()) -> list[Series]:
    """All series that a worker may ever post.

    Args:
        depth: deepest depth drafted.
        budget: most rows of one verify pass, root included.
        whys: reasons of budget ``auto``; none where it is not in use.
    """
    return [
        *(Series(names.ROUNDS.name, (shape.value,)) for shape in Shape),
        Series(names.NODES.name),
        *(Series(names.ACCEPTED_BY_DEPTH.name, (str(d),)) for d in range(1, depth + 1)),
        *(Series(names.ROUND_ROWS.name, (str(rows),)) for rows in range(1, budget + 1)),
        *(Series(names.TREE_DEPTH.name, (str(d),)) for d in range(1, depth + 1)),
        *(Series(names.FALLBACKS.name, (shape.value, reason)) for reason, shape in REASONS.items()),
        Series(names.BUDGET.name),
        Series(names.BATCH_ROWS.name),
        *(Series(names.AUTO_STEPS.name, (why,)) for why in whys),
    ]


def worker_values(counters: Counters) -> dict[Series, float]:
    """The newest values of those series that are not 0 any more, and of all gauges."""
    chains = counters.rounds - counters.branching
    requests, rows = counters.batch
    values = {
        Series(names.ROUNDS.name, (Shape.TREE.value,)): counters.branching,
        Series(names.ROUNDS.name, (Shape.CHAIN.value,)): chains,
        Series(names.ROUNDS.name, (Shape.PLAIN.value,)): counters.plain,
        Series(names.NODES.name): counters.nodes,
        # A round without drafts has one row.
        Series(names.ROUND_ROWS.name, ("1",)): counters.plain,
        Series(names.BUDGET.name): rows / requests if requests else 0.0,
        Series(names.BATCH_ROWS.name): rows,
    }
    for metric, counted in (
        (names.ACCEPTED_BY_DEPTH, counters.accepted_by_depth),
        (names.ROUND_ROWS, counters.rows),
        (names.TREE_DEPTH, counters.depths),
    ):
        values |= {Series(metric.name, (str(key),)): count for key, count in counted.items()}
    for (shape, reason), count in counters.fallbacks.items():
        values[Series(names.FALLBACKS.name, (str(shape), reason))] = count
    for why, count in counters.auto_steps.items():
        values[Series(names.AUTO_STEPS.name, (why,))] = count
    return values
