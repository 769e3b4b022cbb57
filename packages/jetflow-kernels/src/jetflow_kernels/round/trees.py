"""The trees of one round as device tensors of one fixed shape."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from jetflow_kernels.round.checks import INTEGERS, expect, expect_contiguous

WORD_BITS = 64


def num_words(rows: int) -> int:
    """Ancestor words that hold one bit for each of ``rows`` rows."""
    return -(-rows // WORD_BITS)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TreeBatch:
    """R trees of at most B rows each, row 0 the root, on one device, all contiguous.

    Row i of tree r holds a node if ``i < num_nodes[r]``. Other rows are padding: token 0, parent
    -1, depth 0, score -inf, the position of the root; in the ancestor words they see themselves
    alone, so a softmax over their mask is never empty.
    """

    tokens: Tensor
    """[R, B] int32 or int64."""
    parents: Tensor
    """[R, B] int32: row of the parent, below the row itself; -1 at the root and in padding."""
    depths: Tensor
    """[R, B] int32."""
    scores: Tensor
    """[R, B] float64: cumulative log-probability, 0 at the root."""
    ancestors: Tensor
    """[R, B, ceil(B / 64)] int64: bit ``i % 64`` of word ``i // 64`` says that row i is seen."""
    positions: Tensor
    """[R, B] int32 or int64: position of the root plus depth."""
    num_nodes: Tensor
    """[R] int32: rows that hold a node, the root included; from 1 to B."""
    valid: Tensor
    """[R] bool: False where the input was outside its contract, so that the tree is its root."""

    @classmethod
    def empty(
        cls,
        requests: int,
        capacity: int,
        *,
        token_type: torch.dtype,
        position_type: torch.dtype,
        device: torch.device,
    ) -> TreeBatch:
        """Uninitialised trees to build into: ``requests`` of ``capacity`` rows."""

        def new(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            tokens=new(requests, capacity, dtype=token_type),
            parents=new(requests, capacity),
            depths=new(requests, capacity),
            scores=new(requests, capacity, dtype=torch.float64),
            ancestors=new(requests, capacity, num_words(capacity), dtype=torch.int64),
            positions=new(requests, capacity, dtype=position_type),
            num_nodes=new(requests),
            valid=new(requests, dtype=torch.bool),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by the names of their fields, in order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def check(self, requests: int, capacity: int, device: torch.device) -> None:
        """Raise ValueError unless these are ``requests`` trees of ``capacity`` rows.

        Args:
            requests: R.
            capacity: B.
            device: where they must be.
        """
        rows = (requests, capacity)
        words = num_words(capacity)
        for name, shape, types in (
            ("tokens", rows, INTEGERS),
            ("parents", rows, (torch.int32,)),
            ("depths", rows, (torch.int32,)),
            ("scores", rows, (torch.float64,)),
            ("ancestors", (*rows, words), (torch.int64,)),
            ("positions", rows, INTEGERS),
            ("num_nodes", (requests,), (torch.int32,)),
            ("valid", (requests,), (torch.bool,)),
        ):
            tensor: Tensor = getattr(self, name)
            expect(f"out.{name}", tensor, shape, types, device)
            expect_contiguous(f"out.{name}", tensor)
