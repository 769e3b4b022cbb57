"""How fast a run goes and how long it still takes."""

from __future__ import annotations

FIRST_STEPS = 20
"""Steps after which the rate is told; the first ones compile and warm up."""


def time_left(seconds: float, share: float) -> float:
    """Seconds until the horizon, of a run that took ``seconds`` for ``share`` of it (above 0).

    With a horizon in time this is exact, with one in steps it holds while steps last as they did.
    """
    return seconds * max(0.0, 1.0 - share) / share


def pace(step: int, seconds: float, share: float, rows: float) -> str:
    """The end of a progress line, such as ``, 600,123 rows/s, 15.6 steps/s, 0:04:10 left``.

    "" in the first steps: the very first is not timed, and few others say little. ``rows`` are
    loss rows a second.
    """
    if step < FIRST_STEPS or seconds <= 0 or share <= 0:
        return ""
    left = clock(time_left(seconds, share))
    return f", {rows:,.0f} rows/s, {step / seconds:.1f} steps/s, {left} left"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds, as ``1:02:03``."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
