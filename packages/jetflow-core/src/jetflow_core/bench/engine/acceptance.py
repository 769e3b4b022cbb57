"""Acceptance as a file gives it: how likely a round keeps at least so many drafted tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from jetflow_core.limits import MAX_BUDGET

FILE_BUDGET = 128
"""Budget that a set was measured at if it does not name one."""
_TOLERANCE = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """One set of such a file."""

    name: str
    at_least: tuple[float, ...]
    """Entry k - 1: the probability that a round keeps k drafted tokens or more."""
    budget: int = FILE_BUDGET
    """Rows of the trees that it was measured with, the root included."""

    @property
    def depth(self) -> int:
        """Deepest depth that it knows of."""
        return len(self.at_least)

    @property
    def tau(self) -> float:
        """Tokens a round: those kept and the correction."""
        return 1.0 + sum(self.at_least)


def read_trace(path: str | Path, name: str) -> Trace:
    """The set called ``name`` of an acceptance file.

    The file is a JSON object whose ``sets`` are objects with ``p_accept_at_least``, a list, and
    ``tau``, its sum and 1; a set may name its ``budget``.

    Raises:
        ValueError: there is no such file or set, or a number in it is out of range; named.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the acceptance file {path}: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"the acceptance file {path} is no JSON: {error}") from error
    sets = raw.get("sets") if isinstance(raw, Mapping) else None
    if not isinstance(sets, Mapping) or not sets:
        raise ValueError(f"the acceptance file {path} holds no object 'sets'")
    if name not in sets:
        raise ValueError(f"trace {name!r} is not in {path}: it has {', '.join(sorted(sets))}")
    return _checked(name, sets[name], f"trace {name!r} of {path}")


def _checked(name: str, raw: Any, where: str) -> Trace:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("p_accept_at_least"), list):
        raise ValueError(f"{where} has no list 'p_accept_at_least'")
    found = raw["p_accept_at_least"]
    if not found:
        raise ValueError(f"{where}: p_accept_at_least is empty")
    for value in found:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise ValueError(f"{where}: p_accept_at_least holds {value!r}, allowed is 0 to 1")
    if any(later > earlier for earlier, later in pairwise(found)):
        raise ValueError(f"{where}: p_accept_at_least rises")
    budget = raw.get("budget", FILE_BUDGET)
    if isinstance(budget, bool) or not isinstance(budget, int) or not 2 <= budget <= MAX_BUDGET:
        raise ValueError(f"{where}: budget {budget!r} is out of range: 2 to {MAX_BUDGET}")
    trace = Trace(name=name, at_least=tuple(float(value) for value in found), budget=budget)
    told = raw.get("tau")
    if not isinstance(told, int | float) or abs(trace.tau - told) > _TOLERANCE:
        raise ValueError(f"{where}: tau is {told!r}, its probabilities give {trace.tau:.3f}")
    return trace
