"""Costs for the requests that a run holds at once: from the cache, or measured now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from jetflow_core.reports.provenance import provenance
from jetflow_core.rounds.auto.choice import AutoBudget
from jetflow_core.rounds.auto.cost_file import cost_file, store_costs, stored_costs
from jetflow_core.rounds.auto.costs import RoundCosts
from jetflow_core.rounds.auto.measure import Timed, measured_costs
from jetflow_core.rounds.draft import RoundDrafter
from jetflow_core.stacks import DecoderStack

_PACKAGES = ("jetflow-tree", "jetflow-core", "jetflow-kernels", "torch", "triton")


def cost_key(
    stack: DecoderStack, drafter: RoundDrafter, *, steps: str, mode: str, page: int, columns: int
) -> dict[str, Any]:
    """All that the cost of a round depends on, as plain JSON.

    Args:
        stack: the target.
        drafter: proposes.
        steps: name of the steps of a round.
        mode: whether rounds are captured.
        page: rows of a page.
        columns: pages of a request.
    """
    device = stack.device
    found = provenance(str(device))
    return {
        "device": found["device_name"],
        "threads": None if device.type == "cuda" else torch.get_num_threads(),
        "versions": {name: found["packages"].get(name) for name in _PACKAGES},
        "steps": steps,
        "layers": type(stack.ops).__name__,
        "mode": mode,
        "shape": asdict(stack.shape),
        "dtype": str(stack.dtype),
        "taps": list(stack.taps),
        "context": stack.context_length,
        "draft": [drafter.depth, drafter.row_bytes, drafter.scratch_rows],
        "page": page,
        "columns": columns,
    }


def ready_costs(
    auto: AutoBudget,
    timed: Timed,
    key: Mapping[str, Any],
    requests: Sequence[int],
    *,
    contexts: tuple[int, ...],
    folder: Path | None = None,
) -> bool:
    """Sees to it that ``auto`` knows what rounds of so many requests cost.

    Args:
        auto: whose costs are used, looked up, or measured and stored.
        timed: measures a round.
        key: as ``cost_key``.
        requests: numbers of them, ascending.
        contexts: where rounds are measured.
        folder: of the files; None: in the user's cache folder.

    Returns:
        Whether anything was measured.

    Raises:
        ValueError: costs were given and do not reach so many requests.
    """
    if auto.given and auto.costs is not None:
        if auto.costs.requests[-1] < requests[-1]:
            raise ValueError(
                f"the given costs are of {list(auto.costs.requests)} requests; up to "
                f"{requests[-1]} are held at once"
            )
        return False
    key = {**key, "most": auto.most, "most_total": auto.most_total}
    known = auto.costs
    if known is None:
        known = stored_costs(cost_file(key, folder), key)
    missing = _lacking(known, requests)
    if missing:
        new = measured_costs(timed, missing, contexts, most=auto.most, most_total=auto.most_total)
        known = new if known is None else _merged(known, new)
        store_costs(cost_file(key, folder), key, known)
    auto.costs = known
    return bool(missing)


def _lacking(costs: RoundCosts | None, wanted: Sequence[int]) -> list[int]:
    return [each for each in wanted if costs is None or each not in costs.requests]


def _merged(old: RoundCosts, new: RoundCosts) -> RoundCosts:
    if old.contexts != new.contexts:
        raise ValueError(
            f"costs of {list(old.requests)} requests are of contexts {old.contexts}, those of "
            f"{list(new.requests)} of {new.contexts}"
        )
    return RoundCosts(contexts=old.contexts, seconds={**old.seconds, **new.seconds})
