"""Finds the operations of a layer for a device.

An installed package offers them for GPUs by an entry point of the group `jetflow.layer_ops`:

    [project.entry-points."jetflow.layer_ops"]
    triton = "some_package.layer_ops"

The object, a module will do, is used as `LayerOps` says. Which one was chosen comes back with it,
to be told to the user: a machine without such a package decodes correctly and slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import torch

from jetflow_core.stacks.ops import LayerOps
from jetflow_core.stacks.torch_ops import TorchOps

GROUP = "jetflow.layer_ops"
TORCH = "torch"
"""Name of the reference."""


@dataclass(frozen=True, slots=True)
class LayerBackend:
    """The operations of a layer and what they are called."""

    name: str
    ops: LayerOps


def layer_ops_for(
    device: torch.device | str, offered: Iterable[EntryPoint] | None = None
) -> LayerBackend:
    """The installed operations on a CUDA device, the first by name; torch's own everywhere else.

    Args:
        device: Where a stack runs.
        offered: Entry points; None: those of all installed packages.

    Raises:
        RuntimeError: the installed ones cannot be loaded; named.
    """
    found = sorted(
        entry_points(group=GROUP) if offered is None else offered, key=lambda each: each.name
    )
    if torch.device(device).type != "cuda" or not found:
        return LayerBackend(TORCH, TorchOps())
    first = found[0]
    try:
        return LayerBackend(first.name, first.load())
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"the layer operations {first.name} ({first.value}) are installed and cannot be "
            f"loaded: {error}"
        ) from error
