"""The two ends of a round's pass in plain torch: packing its rows, and keeping some of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_core.rounds.results import RoundLines
from jetflow_core.rounds.torch_attention import owners_of_rows

_NONE = -1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TorchPackedTrees:
    """As ``PackedTrees`` says."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    ancestors: Tensor
    owners: Tensor
    cu_nodes: Tensor
    places: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TorchKeptRows:
    """As ``KeptRows`` says."""

    rows: Tensor
    places: Tensor
    counts: Tensor


def pack_trees(
    tokens: Tensor,
    positions: Tensor,
    ancestors: Tensor,
    page_table: Tensor,
    prefix_len: Tensor,
    counts: Tensor,
    *,
    rows: int,
    page: int,
) -> TorchPackedTrees:
    """See ``RoundOps``."""
    starts = torch.zeros(counts.shape[0] + 1, dtype=torch.int32, device=counts.device)
    starts[1:] = counts.cumsum(0)
    owners, within = owners_of_rows(starts, rows)
    capacity = tokens.shape[1]
    where = (owners, within.clamp(max=capacity - 1))
    padding = torch.arange(rows, device=counts.device) >= starts[-1]
    slots = _slots_behind(page_table, prefix_len, capacity, page)
    return TorchPackedTrees(
        tokens=tokens[where].long().masked_fill(padding, 0),
        positions=positions[where].int().masked_fill(padding, 0),
        slots=slots[where].masked_fill(padding, _NONE),
        ancestors=ancestors[where].masked_fill(padding[:, None], 0),
        owners=owners,
        cu_nodes=starts,
        places=_packed_rows(starts, torch.arange(capacity, device=counts.device), rows),
    )


def advance(
    lines: RoundLines,
    rows: Tensor,
    tokens: Tensor,
    accepted: Tensor,
    correction: Tensor,
    counts: Tensor,
    cu_nodes: Tensor,
    broken: Tensor,
    valid: Tensor,
) -> TorchKeptRows:
    """See ``RoundOps``."""
    live = lines.live.clone()
    kept = rows.masked_fill(~live[:, None], _NONE)
    places = _packed_rows(cu_nodes, kept, broken.shape[0])
    met_nan = (broken[places] & (kept >= 0)).any(1)
    grown = (accepted + 1).masked_fill(~live, 0)
    stops = (tokens[..., None] == lines.stops[:, None]).any(-1) & (tokens >= 0)
    before_stop = torch.where(stops.any(1), stops.int().argmax(1) + 1, stops.shape[1] + 1)
    count = torch.minimum(grown, torch.minimum(before_stop, lines.remaining)).int()
    count = count.masked_fill(~live, 0)
    ended = (before_stop <= grown) | (count >= lines.remaining)
    facts = (count, accepted, counts, met_nan.int(), valid.int())
    record = torch.cat([torch.stack(facts, dim=1), tokens], dim=1)
    lines.record.copy_(record.masked_fill(~live[:, None], 0))
    lines.roots.copy_(torch.where(live, correction, lines.roots))
    lines.prefix_len.add_(grown)
    lines.remaining.sub_(count)
    lines.live.copy_(live & ~ended)
    return TorchKeptRows(rows=kept, places=places, counts=(kept >= 0).sum(1).int())


def _packed_rows(cu_nodes: Tensor, places: Tensor, rows: int) -> Tensor:
    """``[R, N]`` int64 of the tree rows ``places``; what is no row gives some row of the pass."""
    return (cu_nodes[:-1, None] + places).clamp(0, rows - 1).long()


def _slots_behind(page_table: Tensor, prefix_len: Tensor, capacity: int, page: int) -> Tensor:
    place = prefix_len[:, None] + torch.arange(capacity, device=page_table.device)
    number = place // page
    last = page_table.shape[1] - 1
    found = page_table.gather(1, number.clamp(max=last).long())
    return torch.where(number <= last, found.long() * page + place % page, _NONE)
