"""Trees of plain decoding: a root each, of which only token and position ever change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RootTrees:
    """As ``TreeBatch`` says, with one row a tree."""

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    ancestors: Tensor
    positions: Tensor
    num_nodes: Tensor
    valid: Tensor

    @classmethod
    def empty(cls, requests: int, device: torch.device) -> Self:
        """Trees of no token yet."""

        def full(value: int, dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.full((requests, *shape), value, dtype=dtype, device=device)

        return cls(
            tokens=full(0, torch.int32, 1),
            parents=full(-1, torch.int32, 1),
            depths=full(0, torch.int32, 1),
            scores=full(0, torch.float64, 1),
            ancestors=full(1, torch.int64, 1, 1),
            positions=full(0, torch.int32, 1),
            num_nodes=full(1, torch.int32),
            valid=full(1, torch.bool),
        )

    def of(self, roots: Tensor, positions: Tensor) -> Self:
        """The trees of the first requests; nothing is copied.

        Args:
            roots: int32 ``[R]``.
            positions: int32 ``[R]``, of the roots.
        """
        count = roots.shape[0]
        return replace(
            self,
            tokens=roots[:, None],
            parents=self.parents[:count],
            depths=self.depths[:count],
            scores=self.scores[:count],
            ancestors=self.ancestors[:count],
            positions=positions[:, None],
            num_nodes=self.num_nodes[:count],
            valid=self.valid[:count],
        )
