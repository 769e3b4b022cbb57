"""Finds the steps of a round for a device.

An installed package offers them for GPUs by an entry point of the group ``jetflow.round_ops``:

    [project.entry-points."jetflow.round_ops"]
    triton = "some_package.round_ops"

The object is used as ``RoundOps`` says. Which one was chosen comes back with it, to be told to the
user: a machine without such a package decodes correctly and slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import torch

from jetflow_core.rounds.ops import RoundOps
from jetflow_core.rounds.torch_ops import TorchRoundOps

GROUP = "jetflow.round_ops"
TORCH = "torch"
"""Name of the reference."""


@dataclass(frozen=True, slots=True)
class RoundBackend:
    """The steps of a round and what they are called."""

    name: str
    ops: RoundOps


def round_ops_for(
    device: torch.device, offered: Iterable[EntryPoint] | None = None
) -> RoundBackend:
    """The installed steps on a CUDA device, the first by name; torch's own everywhere else.

    Args:
        device: where rounds run.
        offered: entry points; None: those of all installed packages.

    Raises:
        RuntimeError: the installed ones cannot be loaded; named.
    """
    if device.type != "cuda":
        return RoundBackend(TORCH, TorchRoundOps())
    found = sorted(
        entry_points(group=GROUP) if offered is None else offered, key=lambda each: each.name
    )
    if not found:
        return RoundBackend(TORCH, TorchRoundOps())
    try:
        return RoundBackend(found[0].name, found[0].load())
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"the round's steps {found[0].name} ({found[0].value}) are installed and cannot be "
            f"loaded: {error}"
        ) from error
