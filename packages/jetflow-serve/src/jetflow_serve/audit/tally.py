"""What audits found, as series of metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from jetflow_serve.audit.judge import SKIPS, Divergence
from jetflow_serve.metrics import names
from jetflow_serve.metrics.board import Series

RESULTS = ("same", "diverged")


@dataclass(slots=True)
class Tally:
    """Running sums."""

    results: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    gaps: Counter[float] = field(default_factory=Counter)
    """By the bound that the gap was rounded up to."""

    def judged(self, found: Divergence | None) -> None:
        """Adds one audited request."""
        self.results["same" if found is None else "diverged"] += 1
        if found is not None and found.gap is not None:
            place = min(bisect_left(names.GAPS, found.gap), len(names.GAPS) - 1)
            self.gaps[names.GAPS[place]] += 1

    def values(self) -> dict[Series, float]:
        """The newest value of every series that is not 0 any more."""
        return {
            **{Series(names.AUDITED.name, (k,)): n for k, n in self.results.items()},
            **{Series(names.AUDIT_SKIPPED.name, (k,)): n for k, n in self.skipped.items()},
            **{Series(names.AUDIT_GAP.name, (repr(k),)): n for k, n in self.gaps.items()},
        }


def audit_series() -> list[Series]:
    """All series that an audit may ever post."""
    return [
        *(Series(names.AUDITED.name, (result,)) for result in RESULTS),
        *(Series(names.AUDIT_SKIPPED.name, (reason,)) for reason in SKIPS),
        *(Series(names.AUDIT_GAP.name, (repr(bound),)) for bound in names.GAPS),
    ]
