"""The accepted path of a round, along the target's picks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    INTEGERS,
    MOST_ROWS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    power_of_two,
)

NONE = -1
"""Fills rows and tokens behind the end of a path."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class AcceptedBatch:
    """The accepted paths of R trees of at most D depths, on one device, all contiguous."""

    rows: Tensor
    """[R, D + 1] int32: the root's row 0, the accepted rows from depth 1 on, then -1."""
    tokens: Tensor
    """[R, D + 1], type of the picks: what the round commits, the accepted tokens and the
    correction behind them, then -1."""
    accepted: Tensor
    """[R] int32: accepted rows, the root not counted, from 0 to D."""
    correction: Tensor
    """[R], type of the picks: the target's pick at the last accepted row, or at the root."""

    @classmethod
    def empty(
        cls, requests: int, max_depth: int, *, token_type: torch.dtype, device: torch.device
    ) -> AcceptedBatch:
        """Uninitialised paths to walk into."""
        shape = (requests, max_depth + 1)
        return cls(
            rows=torch.empty(shape, dtype=torch.int32, device=device),
            tokens=torch.empty(shape, dtype=token_type, device=device),
            accepted=torch.empty(requests, dtype=torch.int32, device=device),
            correction=torch.empty(requests, dtype=token_type, device=device),
        )


def accept_walk(
    tokens: Tensor,
    parents: Tensor,
    num_nodes: Tensor,
    picks: Tensor,
    *,
    max_depth: int,
    out: AcceptedBatch | None = None,
) -> AcceptedBatch:
    """Walks every tree from its root to the child that carries the target's pick, and on.

    Args:
        tokens: [R, B] int32 or int64, B from 1 to 256.
        parents: [R, B] int32, rows of the parents.
        num_nodes: [R] int32, rows of each tree; those behind are not looked at.
        picks: [R, B] int32 or int64, the token that the target picks after each row. Picks that
            the walk does not pass are not read.
        max_depth: D, the most rows that may be accepted, at least 0.
        out: paths to write into instead of new ones.

    Returns:
        The paths. Of several children with one token the first is taken.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    paths = _check(tokens, parents, num_nodes, picks, max_depth, out)
    if tokens.shape[0]:
        _accept_walk(
            tokens.contiguous(), parents.contiguous(), num_nodes, picks.contiguous(), max_depth,
            paths.rows, paths.tokens, paths.accepted, paths.correction,
        )  # fmt: skip
    return paths


def accept_walk_reference(
    tokens: Tensor,
    parents: Tensor,
    num_nodes: Tensor,
    picks: Tensor,
    *,
    max_depth: int,
    out: AcceptedBatch | None = None,
) -> AcceptedBatch:
    """What ``accept_walk`` returns, on any device, one row at a time on the host.

    Args:
        tokens: see there.
        parents: see there.
        num_nodes: see there.
        picks: see there.
        max_depth: see there.
        out: see there.

    Returns:
        The paths.

    Raises:
        ValueError: as there, except that any device will do.
    """
    paths = _check(tokens, parents, num_nodes, picks, max_depth, out)
    paths.rows.fill_(NONE)
    paths.tokens.fill_(NONE)
    for request in range(tokens.shape[0]):
        count = int(num_nodes[request])
        named, above = tokens[request, :count].tolist(), parents[request, :count].tolist()
        path = [0]
        while len(path) <= max_depth:
            wanted = (path[-1], int(picks[request, path[-1]]))
            children = [row for row in range(1, count) if (above[row], named[row]) == wanted]
            if not children:
                break
            path.append(children[0])
        correction = int(picks[request, path[-1]])
        emitted = [*(named[row] for row in path[1:]), correction]
        paths.rows[request, : len(path)] = torch.tensor(path, dtype=torch.int32)
        paths.tokens[request, : len(path)] = torch.tensor(emitted, dtype=picks.dtype)
        paths.accepted[request] = len(path) - 1
        paths.correction[request] = correction
    return paths


@torch.library.custom_op(
    "jetflow_kernels::accept_walk",
    mutates_args=("out_rows", "out_tokens", "out_accepted", "out_correction"),
)
def _accept_walk(
    tokens: Tensor,
    parents: Tensor,
    num_nodes: Tensor,
    picks: Tensor,
    max_depth: int,
    out_rows: Tensor,
    out_tokens: Tensor,
    out_accepted: Tensor,
    out_correction: Tensor,
) -> None:
    from jetflow_kernels.round.walk_kernel import accept_kernel

    requests, capacity = tokens.shape
    with device_of(accept_kernel, tokens):
        accept_kernel[(requests,)](
            tokens, parents, num_nodes, picks,
            out_rows, out_tokens, out_accepted, out_correction, capacity, max_depth,
            SLOTS=power_of_two(capacity, least=32), STEPS=power_of_two(max_depth + 1),
            num_warps=1,
        )  # fmt: skip


@_accept_walk.register_fake
def _(*arguments: Tensor | int) -> None:
    """The results are written in place; nothing is made."""


def _check(
    tokens: Tensor,
    parents: Tensor,
    num_nodes: Tensor,
    picks: Tensor,
    max_depth: int,
    out: AcceptedBatch | None,
) -> AcceptedBatch:
    device = tokens.device
    expect("tokens", tokens, (-1, -1), INTEGERS, device)
    requests, capacity = tokens.shape
    expect_range("the rows B of tokens", capacity, 1, MOST_ROWS)
    expect("parents", parents, (requests, capacity), (torch.int32,), device)
    expect("num_nodes", num_nodes, (requests,), (torch.int32,), device)
    expect("picks", picks, (requests, capacity), INTEGERS, device)
    expect_range("max_depth", max_depth, 0, MOST_ROWS - 1)
    if out is None:
        return AcceptedBatch.empty(requests, max_depth, token_type=picks.dtype, device=device)
    for name, tensor, shape, dtype in (
        ("out.rows", out.rows, (requests, max_depth + 1), torch.int32),
        ("out.tokens", out.tokens, (requests, max_depth + 1), picks.dtype),
        ("out.accepted", out.accepted, (requests,), torch.int32),
        ("out.correction", out.correction, (requests,), picks.dtype),
    ):
        expect(name, tensor, shape, (dtype,), device)
        expect_contiguous(name, tensor)
    return out
