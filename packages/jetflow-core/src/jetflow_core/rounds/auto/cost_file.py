"""Measured costs in the user's cache folder: one JSON file for each device, model and version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from jetflow_core.embedded.store import default_cache_dir
from jetflow_core.reports.files import OutputError, write_json
from jetflow_core.rounds.auto.costs import RoundCosts

FORMAT = "jetflow-round-costs/1"


def cost_file(key: Mapping[str, Any], folder: Path | None = None) -> Path:
    """Where costs under this key lie.

    Args:
        key: all that a cost depends on; plain JSON.
        folder: of all such files; None: ``rounds`` in the user's cache folder.
    """
    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return (default_cache_dir() / "rounds" if folder is None else folder) / f"{digest}.json"


def stored_costs(file: Path, key: Mapping[str, Any]) -> RoundCosts | None:
    """The costs in a file; None where there is none, or where they do not fit and are refused.

    They fit if the file says that they were measured under this very key, and every number is one
    that a cost can be.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or raw.get("key") != dict(key):
        return None
    try:
        return RoundCosts.of_dict(raw.get("costs"))
    except ValueError:
        return None


def store_costs(file: Path, key: Mapping[str, Any], costs: RoundCosts) -> bool:
    """Writes costs as a whole or not at all; whether it could be done.

    A machine whose cache folder cannot be written measures again at every start.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {"format": FORMAT, "key": dict(key), "costs": costs.to_dict()})
    except (OSError, OutputError):
        return False
    return True
