"""The trees of a batch that causal attention would get wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_serve.stage import Staged


@dataclass(frozen=True, slots=True)
class TreeRows:
    """A tree with branches in a batch."""

    index: int
    """Place of its request in the batch."""
    rows: slice
    """Its rows of the batch."""
    context: int
    sight: Tensor
    """Bool ``[N, N]``."""


def tree_rows(staged: Sequence[Staged | None]) -> list[TreeRows]:
    """The trees with branches of a batch."""
    return [
        TreeRows(index, entry.rows, entry.context, torch.from_numpy(entry.sight()))
        for index, entry in enumerate(staged)
        if entry is not None and entry.branches
    ]
