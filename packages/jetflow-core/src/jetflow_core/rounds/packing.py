"""From padded trees to the packed rows of one pass, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_core.rounds.ops import TreeBatch
from jetflow_core.rounds.torch_attention import owners_of_rows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedTrees:
    """The rows of R trees one behind the other, then padding: T rows in all."""

    tokens: Tensor
    """int64 ``[T]``; 0 in padding."""
    positions: Tensor
    """int32 ``[T]``; 0 in padding."""
    slots: Tensor
    """int64 ``[T]``: where keys and values go; -1 in padding."""
    ancestors: Tensor
    """int64 ``[T, W]``; 0 in padding."""
    owners: Tensor
    """int64 ``[T]``: whose row it is; any request in padding."""
    cu_nodes: Tensor
    """int32 ``[R + 1]``: first row of each tree."""

    def rows_of(self, places: Tensor) -> Tensor:
        """Packed rows ``[R, N]`` int64 of the tree rows ``places`` ``[R, N]`` of each request.

        What is no row of its tree gives some row of the pass.
        """
        last = self.tokens.shape[0] - 1
        return (self.cu_nodes[:-1, None] + places).clamp(0, last).long()


def pack_trees(trees: TreeBatch, counts: Tensor, slots: Tensor, rows: int) -> PackedTrees:
    """Packs the first ``counts`` rows of each tree.

    Args:
        trees: R trees of C rows.
        counts: int32 ``[R]``, 0 for padding requests; at most ``rows`` in all.
        slots: int64 ``[R, C]`` cache slots.
        rows: T.
    """
    starts = torch.zeros(counts.shape[0] + 1, dtype=torch.int32, device=counts.device)
    starts[1:] = counts.cumsum(0)
    owners, within = owners_of_rows(starts, rows)
    where = (owners, within.clamp(max=trees.tokens.shape[1] - 1))
    padding = torch.arange(rows, device=counts.device) >= starts[-1]
    return PackedTrees(
        tokens=trees.tokens[where].long().masked_fill(padding, 0),
        positions=trees.positions[where].int().masked_fill(padding, 0),
        slots=slots[where].masked_fill(padding, -1),
        ancestors=trees.ancestors[where].masked_fill(padding[:, None], 0),
        owners=owners,
        cu_nodes=starts,
    )
