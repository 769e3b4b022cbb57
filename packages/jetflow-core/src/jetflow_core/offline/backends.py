"""Finds the attention that decodes rows on a device.

An installed package offers one for GPUs by an entry point of the group ``jetflow.row_attention``:

    [project.entry-points."jetflow.row_attention"]
    triton = "jetflow_kernels.rows:attend_rows"

The object is called as ``RowAttention`` says. Which one was chosen comes back with it, to be told
to the user: a machine without such a package decodes correctly and slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

import torch

from jetflow_core.offline.attention import MaskedAttention, RowAttention

GROUP = "jetflow.row_attention"
MASKED = "masked"
"""Name of torch's own attention."""


@dataclass(frozen=True, slots=True)
class RowBackend:
    """A row attention and what it is called."""

    name: str
    attend: RowAttention


def row_attention_for(
    device: torch.device, offered: Iterable[EntryPoint] | None = None
) -> RowBackend:
    """The installed attention on a CUDA device, the first by name; torch's own everywhere else.

    Args:
        device: where rows are decoded.
        offered: entry points; None: those of all installed packages.

    Raises:
        RuntimeError: the installed one cannot be loaded; named.
    """
    if device.type != "cuda":
        return RowBackend(MASKED, MaskedAttention())
    found = sorted(
        entry_points(group=GROUP) if offered is None else offered, key=lambda each: each.name
    )
    if not found:
        return RowBackend(MASKED, MaskedAttention())
    try:
        return RowBackend(found[0].name, found[0].load())
    except (ImportError, AttributeError) as error:
        raise RuntimeError(
            f"the row attention {found[0].name} ({found[0].value}) is installed and cannot be "
            f"loaded: {error}"
        ) from error
