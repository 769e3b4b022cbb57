"""Where two answers part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jetflow_core.bench.engine_lossless.gaps import LogitGaps
from jetflow_core.bench.engine_lossless.place import Asked
from jetflow_core.lossless import first_difference


def parting(
    asked: Asked, expected: Sequence[int], found: Sequence[int], gaps: LogitGaps
) -> dict[str, Any] | None:
    """The first difference of two answers to one request, for JSON.

    Args:
        asked: the request.
        expected: the answer that counts.
        found: the other.
        gaps: tells how close it was.

    Returns:
        None if they are equal; else position, both tokens (None: the answer had ended), and the
        gap of the expected one over the other.
    """
    at = first_difference(expected, found)
    if at is None:
        return None
    one = expected[at] if at < len(expected) else None
    other = found[at] if at < len(found) else None
    gap = gaps.between((*asked.case.prompt, *expected[:at]), one, other)
    return {
        "prompt": asked.case.name,
        "limit": asked.limit,
        "position": at,
        "expected": one,
        "found": other,
        "logit_gap": None if gap is None else gap.logit_gap,
        "near_tie": None if gap is None else gap.near_tie,
    }
