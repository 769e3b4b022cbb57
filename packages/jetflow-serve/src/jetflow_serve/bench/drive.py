"""What the process of the client does: the loads of one configuration, one after the other.

One process for all of them, since importing the client takes longer than many a load.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jetflow_core.reports.files import write_json

from jetflow_serve.bench.scrape import grown, scrape

_COUNTERS = "counters.json"


def write_plan(file: Path, url: str, loads: Sequence[Sequence[str]]) -> None:
    """Writes what ``run_loads`` reads: the server, and the client's arguments for each load."""
    write_json(file, {"url": url, "loads": [list(arguments) for arguments in loads]})


def run_loads(file: Path, run: Callable[[list[str]], object]) -> None:
    """Runs every load of a plan and keeps by how much the server's counters grew meanwhile.

    Args:
        file: from ``write_plan``.
        run: one run of the client with these arguments.

    Raises:
        OSError: the server does not answer.
        ValueError: it is another server after a load than before it.
    """
    plan: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    found = []
    for arguments in plan["loads"]:
        before = scrape(plan["url"])
        run(arguments)
        found.append(grown(before, scrape(plan["url"])))
    write_json(counters_file(file), {"loads": found})


def counters_file(plan: Path) -> Path:
    """Where ``run_loads`` writes what it found."""
    return plan.with_name(f"{plan.stem}.{_COUNTERS}")
