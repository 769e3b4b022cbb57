"""The list of packed batches and of the ends of rounds."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from jetflow_kernels.round.advance import advance, advance_reference
from jetflow_kernels.round.contests import expect_equal
from jetflow_kernels.round.packed import pack_trees, pack_trees_reference


@dataclass(frozen=True)
class _Lines:
    live: Tensor
    roots: Tensor
    prefix_len: Tensor
    remaining: Tensor
    stops: Tensor
    record: Tensor

    def to(self, device: str) -> _Lines:
        """A copy there."""
        return replace(
            self, **{name: each.to(device, copy=True) for name, each in self.tensors().items()}
        )

    def tensors(self) -> dict[str, Tensor]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _int32(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape).int()


def packed_batches(device: str, *, requests: int, capacity: int) -> tuple[int, float]:
    """Ragged trees, some of no row, behind prefixes that reach past the end of their tables."""
    counts = _int32(0, capacity + 1, requests)
    host = (
        _int32(0, 99_999, requests, capacity), _int32(0, 9_999, requests, capacity),
        torch.randint(-(2**62), 2**62, (requests, capacity, -(-capacity // 64))),
        _int32(0, 9_999, requests, 30), _int32(0, 900, requests), counts,
    )  # fmt: skip
    given = tuple(tensor.to(device) for tensor in host)
    for rows in (max(1, int(counts.sum())), requests * capacity):
        found = pack_trees(*given, rows=rows, page=32)
        wanted = pack_trees_reference(*host, rows=rows, page=32)
        for field in fields(wanted):
            expect_equal(field.name, getattr(found, field.name), getattr(wanted, field.name))
    return 2 * requests, 0.0


def ends_of_rounds(device: str, *, requests: int, steps: int) -> tuple[int, float]:
    """Paths of every length, with stop tokens, ends of budgets, NaN and requests that are idle."""
    accepted = _int32(0, steps, requests)
    behind = torch.arange(steps) > accepted[:, None]
    rows = (_int32(1, 4, requests, steps).cumsum(1) - 1).int()
    rows[:, 0] = 0
    tokens = _int32(0, 60, requests, steps)
    starts = torch.arange(requests + 1, dtype=torch.int32) * (4 * steps)
    host = (
        rows.masked_fill(behind, -1), tokens.masked_fill(behind, -1), accepted,
        tokens.gather(1, accepted[:, None].long())[:, 0], _int32(1, 4 * steps, requests), starts,
        torch.rand(4 * steps * requests) < 0.05, torch.rand(requests) < 0.9,
    )  # fmt: skip
    lines = _Lines(
        live=torch.rand(requests) < 0.8,
        roots=_int32(0, 60, requests),
        prefix_len=_int32(0, 999, requests),
        remaining=_int32(1, 2 * steps + 1, requests),
        stops=_int32(-1, 90, requests, 16),
        record=_int32(0, 9, requests, 5 + steps),
    )
    there = lines.to(device)
    found = advance(there, *(tensor.to(device) for tensor in host))
    wanted = advance_reference(lines, *host)
    for field in fields(wanted):
        expect_equal(field.name, getattr(found, field.name), getattr(wanted, field.name))
    for name, tensor in lines.tensors().items():
        expect_equal(name, there.tensors()[name], tensor)
    return requests, 0.0
