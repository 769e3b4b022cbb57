"""The end of a round: what was kept, what the host will read, and the state of the next round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jetflow_kernels.round.checks import device_of, expect, expect_contiguous, power_of_two

FACTS = 5
"""Columns of a record before its tokens."""


class RoundLines(Protocol):
    """The state of R requests, a line each, that ``advance`` changes in place."""

    @property
    def live(self) -> Tensor:
        """[R] bool."""

    @property
    def roots(self) -> Tensor:
        """[R] int32: the last committed token."""

    @property
    def prefix_len(self) -> Tensor:
        """[R] int32: committed cache rows."""

    @property
    def remaining(self) -> Tensor:
        """[R] int32: tokens that may still come."""

    @property
    def stops(self) -> Tensor:
        """[R, X] int32: tokens that end a request, filled up with -1; only read."""

    @property
    def record(self) -> Tensor:
        """[R, 5 + S] int32, all 0 for a request that is not live.

        Tokens committed, rows accepted, rows verified, whether the walk met NaN, whether the draft
        was in contract, and the tokens of the path.
        """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KeptRows:
    """Which rows stay, all contiguous."""

    rows: Tensor
    """[R, S] int32: rows of the tree, then -1; a line of -1 for a request that is not live."""
    places: Tensor
    """[R, S] int64: their packed rows; some row of the batch where there is none."""
    counts: Tensor
    """[R] int32: how many."""

    @classmethod
    def empty(cls, requests: int, steps: int, device: torch.device) -> KeptRows:
        """Uninitialised results."""
        return cls(
            rows=torch.empty(requests, steps, dtype=torch.int32, device=device),
            places=torch.empty(requests, steps, dtype=torch.int64, device=device),
            counts=torch.empty(requests, dtype=torch.int32, device=device),
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
) -> KeptRows:
    """Ends a round, in one launch.

    A live request's next root is the correction; its prefix grows by the root and the accepted
    rows. It commits the tokens of its path up to the first stop token and to what remains, and
    is live no more behind either.

    Args:
        lines: the state, changed in place; every tensor's last axis without gaps.
        rows: [R, S] int32, as ``accept_walk`` gives them, contiguous.
        tokens: [R, S] int32, likewise.
        accepted: [R] int32, likewise.
        correction: [R] int32, likewise.
        counts: [R] int32: rows of each tree that were verified.
        cu_nodes: [R + 1] int32: first packed row of each tree.
        broken: [T] bool: packed rows whose logits held NaN.
        valid: [R] bool: whether the draft was in contract.

    Returns:
        What was kept.

    Raises:
        ValueError: a shape, type or device is not as said, or it is not a CUDA device.
    """
    given = (rows, tokens, accepted, correction, counts, cu_nodes, broken, valid)
    kept = _check(lines, *given)
    _advance(
        lines.live, lines.roots, lines.prefix_len, lines.remaining, lines.stops, lines.record,
        *given, kept.rows, kept.places, kept.counts,
    )  # fmt: skip
    return kept


def advance_reference(
    lines: RoundLines,
    rows: Tensor,
    tokens: Tensor,
    accepted: Tensor,
    correction: Tensor,
    counts: Tensor,
    cu_nodes: Tensor,
    broken: Tensor,
    valid: Tensor,
) -> KeptRows:
    """What ``advance`` does, on any device, one request at a time on the host.

    Args:
        lines: see there.
        rows: see there.
        tokens: see there.
        accepted: see there.
        correction: see there.
        counts: see there.
        cu_nodes: see there.
        broken: see there.
        valid: see there.

    Returns:
        What was kept.

    Raises:
        ValueError: as there, except that any device will do.
    """
    kept = _check(lines, rows, tokens, accepted, correction, counts, cu_nodes, broken, valid)
    last = broken.shape[0] - 1
    for request, live in enumerate(lines.live.tolist()):
        path = [row for row in rows[request].tolist() if row >= 0] if live else []
        start = int(cu_nodes[request])
        kept.rows[request] = -1
        kept.rows[request, : len(path)] = torch.tensor(path, dtype=torch.int32)
        kept.places[request] = (start + kept.rows[request]).clamp(0, last)
        kept.counts[request] = len(path)
        lines.record[request] = 0
        if not live:
            continue
        emitted = tokens[request, : len(path)].tolist()
        ends = [token in lines.stops[request].tolist() for token in emitted]
        stopped = ends.index(True) + 1 if any(ends) else len(emitted) + 1
        left = int(lines.remaining[request])
        count = min(len(emitted), stopped, left)
        met = any(bool(broken[min(max(start + row, 0), last)]) for row in path)
        facts = [count, int(accepted[request]), int(counts[request]), met, bool(valid[request])]
        lines.record[request, :FACTS] = torch.tensor(facts, dtype=torch.int32)
        lines.record[request, FACTS:] = tokens[request]
        lines.roots[request] = correction[request]
        lines.prefix_len[request] += len(path)
        lines.remaining[request] -= count
        lines.live[request] = stopped > len(emitted) and count < left
    return kept


@torch.library.custom_op(
    "jetflow_kernels::advance",
    mutates_args=(
        "live", "roots", "prefix_len", "remaining", "record", "kept_rows", "kept_places",
        "kept_counts",
    ),
)  # fmt: skip
def _advance(
    live: Tensor,
    roots: Tensor,
    prefix_len: Tensor,
    remaining: Tensor,
    stops: Tensor,
    record: Tensor,
    rows: Tensor,
    tokens: Tensor,
    accepted: Tensor,
    correction: Tensor,
    counts: Tensor,
    cu_nodes: Tensor,
    broken: Tensor,
    valid: Tensor,
    kept_rows: Tensor,
    kept_places: Tensor,
    kept_counts: Tensor,
) -> None:
    from jetflow_kernels.round.advance_kernel import advance_kernel

    requests, steps = rows.shape
    with device_of(advance_kernel, rows):
        advance_kernel[(requests,)](
            live, roots, prefix_len, remaining, stops, record,
            rows, tokens, accepted, correction, counts, cu_nodes, broken, valid,
            kept_rows, kept_places, kept_counts,
            stops.stride(0), record.stride(0), stops.shape[1], steps, broken.shape[0],
            STEPS=power_of_two(steps), STOPS=power_of_two(stops.shape[1]), num_warps=1,
        )  # fmt: skip


@_advance.register_fake
def _(*arguments: Tensor) -> None:
    """The results are written in place; nothing is made."""


def _check(
    lines: RoundLines,
    rows: Tensor,
    tokens: Tensor,
    accepted: Tensor,
    correction: Tensor,
    counts: Tensor,
    cu_nodes: Tensor,
    broken: Tensor,
    valid: Tensor,
) -> KeptRows:
    device, int32, flags = rows.device, (torch.int32,), (torch.bool,)
    expect("rows", rows, (-1, -1), int32, device)
    requests, steps = rows.shape
    if requests < 1 or steps < 1:
        raise ValueError(f"rows must hold at least 1 request and 1 step, got {list(rows.shape)}")
    for name, tensor, shape, types in (
        ("lines.live", lines.live, (requests,), flags),
        ("lines.roots", lines.roots, (requests,), int32),
        ("lines.prefix_len", lines.prefix_len, (requests,), int32),
        ("lines.remaining", lines.remaining, (requests,), int32),
        ("lines.stops", lines.stops, (requests, -1), int32),
        ("lines.record", lines.record, (requests, FACTS + steps), int32),
        ("tokens", tokens, (requests, steps), int32),
        ("accepted", accepted, (requests,), int32),
        ("correction", correction, (requests,), int32),
        ("counts", counts, (requests,), int32),
        ("cu_nodes", cu_nodes, (requests + 1,), int32),
        ("broken", broken, (-1,), flags),
        ("valid", valid, (requests,), flags),
    ):
        expect(name, tensor, shape, types, device)
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"{name} must have no gaps, got strides {tensor.stride()}")
    if not lines.stops.shape[1] or not broken.shape[0]:
        raise ValueError("lines.stops and broken must have at least 1 column and 1 row")
    for name, tensor in (("rows", rows), ("tokens", tokens)):
        expect_contiguous(name, tensor)
    return KeptRows.empty(requests, steps, device)
