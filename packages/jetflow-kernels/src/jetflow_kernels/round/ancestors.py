"""Ancestor words of trees that somebody else built."""

from __future__ import annotations

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
from jetflow_kernels.round.trees import WORD_BITS, num_words


def pack_ancestors(
    parents: Tensor, num_nodes: Tensor, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Packs which rows each row sees (its ancestors, the root, itself) into 64-bit words.

    Args:
        parents: [R, B] int32 or int64, B from 1 to 256; the parent of a row is a row above it,
            that of row 0 is -1. Rows from ``num_nodes`` on are padding and are not read.
        num_nodes: [R] int32 or int64, rows of each tree, 1 to B.
        out: the two results, to be written instead of new tensors.

    Returns:
        words: [R, B, ceil(B / 64)] int64, bit ``i % 64`` of word ``i // 64`` for row i. Padding
            rows see themselves alone.
        valid: [R] bool, False where a parent is not as said or num_nodes is outside 1..B, which
            cannot raise without waiting for the device; every row of that tree sees itself alone.

    Raises:
        ValueError: a shape, type or device is not as said, or it is not a CUDA device.
    """
    words, valid = _check(parents, num_nodes, out)
    if parents.shape[0]:
        _pack_ancestors(parents.contiguous(), num_nodes.contiguous(), words, valid)
    return words, valid


def pack_ancestors_reference(
    parents: Tensor, num_nodes: Tensor, *, out: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """What ``pack_ancestors`` returns, on any device, one row at a time on the host.

    Args:
        parents: see there.
        num_nodes: see there.
        out: see there.

    Returns:
        The words and whether each tree is valid.

    Raises:
        ValueError: as there, except that any device will do.
    """
    words, valid = _check(parents, num_nodes, out)
    requests, capacity = parents.shape
    for request in range(requests):
        above, count = parents[request].tolist(), int(num_nodes[request])
        fine = 1 <= count <= capacity and above[0] == -1
        fine = fine and all(0 <= above[row] < row for row in range(1, count))
        seen = [1 << row for row in range(capacity)]
        for row in range(1, count if fine else 1):
            seen[row] |= seen[above[row]]
        packed = [[_signed(bits >> (64 * word)) for word in range(words.shape[2])] for bits in seen]
        words[request] = torch.tensor(packed, dtype=torch.int64)
        valid[request] = fine
    return words, valid


def _signed(bits: int) -> int:
    """The lowest 64 bits as a signed integer of the same pattern."""
    low = bits & ((1 << WORD_BITS) - 1)
    return low - (1 << WORD_BITS) if low >> (WORD_BITS - 1) else low


@torch.library.custom_op("jetflow_kernels::pack_ancestors", mutates_args=("words", "valid"))
def _pack_ancestors(parents: Tensor, num_nodes: Tensor, words: Tensor, valid: Tensor) -> None:
    from jetflow_kernels.round.walk_kernel import pack_kernel

    requests, capacity = parents.shape
    with device_of(pack_kernel, parents):
        pack_kernel[(requests,)](
            parents, num_nodes, words, valid, capacity, words.shape[2],
            SLOTS=power_of_two(capacity), COLUMNS=power_of_two(words.shape[2]), num_warps=4,
        )  # fmt: skip


@_pack_ancestors.register_fake
def _(parents: Tensor, num_nodes: Tensor, words: Tensor, valid: Tensor) -> None:
    """The results are written in place; nothing is made."""


def _check(
    parents: Tensor, num_nodes: Tensor, out: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    device = parents.device
    expect("parents", parents, (-1, -1), INTEGERS, device)
    requests, capacity = parents.shape
    expect_range("the rows B of parents", capacity, 1, MOST_ROWS)
    expect("num_nodes", num_nodes, (requests,), INTEGERS, device)
    shape = (requests, capacity, num_words(capacity))
    if out is None:
        words = torch.empty(shape, dtype=torch.int64, device=device)
        return words, torch.empty(requests, dtype=torch.bool, device=device)
    for name, tensor, wanted, dtype in (
        ("out[0]", out[0], shape, torch.int64),
        ("out[1]", out[1], (requests,), torch.bool),
    ):
        expect(name, tensor, wanted, (dtype,), device)
        expect_contiguous(name, tensor)
    return out
