"""Costs of every number of requests, from those of a few.

vLLM's batches have as many rows as they have, so what a step costs lies between what was measured
for fewer and for more requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from jetflow_core.rounds import RoundCosts

_Seconds = tuple[float, ...]


def every_count(costs: RoundCosts) -> RoundCosts:
    """Costs of all numbers of requests from the least to the most that were measured.

    At a fixed number of rows the seconds run straight from one measured number of requests to the
    next. Rows that only the lower one was measured with cost as much more as the fewest rows that
    both were measured with; where there are none, nothing is said of them.
    """
    found = dict(costs.seconds)
    for low, high in pairwise(costs.requests):
        below, above = _by_rows(costs, low), _by_rows(costs, high)
        for requests in range(low + 1, high):
            share = (requests - low) / (high - low)
            found[requests, requests] = _between(
                costs.seconds[low, low], costs.seconds[high, high], share
            )
            for rows, seconds in below.items():
                both = [other for other in above if other >= rows and other in below]
                if rows <= requests or not both:
                    continue
                nearest = min(both)
                found[requests, rows] = tuple(
                    value + share * max(more - less, 0.0)
                    for value, less, more in zip(
                        seconds, below[nearest], above[nearest], strict=True
                    )
                )
            for rows, seconds in above.items():
                if rows not in below:
                    # More requests with as many rows cost no less.
                    found[requests, rows] = seconds
    return RoundCosts(contexts=costs.contexts, seconds=found)


def _by_rows(costs: RoundCosts, requests: int) -> Mapping[int, _Seconds]:
    return {rows: costs.seconds[requests, rows] for rows in costs.totals(requests)}


def _between(low: _Seconds, high: _Seconds, share: float) -> _Seconds:
    line = (1 - share) * np.array(low) + share * np.array(high)
    return tuple(map(float, line))
