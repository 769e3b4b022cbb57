"""The drafter's new context: rows of a step that are committed now, in the order of the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jetflow_tree import Accepted
from numpy.typing import NDArray

from jetflow_serve.stage import Staged


@dataclass(frozen=True, slots=True)
class ContextRows:
    """Committed rows of all requests of a batch, request after request."""

    sources: NDArray[np.int64]
    """[C] rows of the batch whose features are taken."""
    places: NDArray[np.int64]
    """[C] rows of the batch whose cache slots belong to them."""
    positions: NDArray[np.int64]
    """[C] their places in the text."""
    ends: NDArray[np.int64]
    """[R] for each request, one past its last entry."""


def context_rows(
    scheduled: Sequence[int],
    contexts: Sequence[int],
    staged: Sequence[Staged | None],
    accepted: Sequence[Accepted],
) -> ContextRows:
    """What a drafter learns from a step.

    Args:
        scheduled: rows of each request.
        contexts: cached tokens of each before the step.
        staged: the tree of each, or None.
        accepted: what each keeps; without a tree all rows are kept.

    Returns:
        The rows; slots are those of the chain, since accepted rows are moved there.
    """
    sources, places, positions, ends = [], [], [], []
    first = total = 0
    for rows, context, entry, kept in zip(scheduled, contexts, staged, accepted, strict=True):
        if entry is None:
            taken = np.arange(rows)
        else:
            taken = np.array([0, *kept.nodes])
        chain = np.arange(len(taken))
        sources.append(first + taken)
        places.append(first + chain)
        positions.append(context + chain)
        total += len(taken)
        ends.append(total)
        first += rows
    return ContextRows(
        sources=_joined(sources),
        places=_joined(places),
        positions=_joined(positions),
        ends=np.array(ends, dtype=np.int64),
    )


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(parts).astype(np.int64)
