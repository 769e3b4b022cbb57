"""The ops on logits and paths refuse what does not fit, by name, before they compute."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jetflow_kernels.round import (
    accept_walk,
    accept_walk_reference,
    depth_topk,
    depth_topk_reference,
    pack_ancestors,
    pack_ancestors_reference,
    pick_argmax,
    pick_argmax_reference,
)
from jetflow_kernels.round.topk import split_vocabulary


@pytest.mark.parametrize("op", [depth_topk, depth_topk_reference])
@pytest.mark.parametrize(
    ("logits", "count", "message"),
    [
        (torch.zeros(5), 1, r"logits must have shape \[any, any\], got \[5\]"),
        (torch.zeros(5, 8).double(), 1, r"logits must be torch.float32 or .* got torch.float64"),
        (torch.zeros(8, 5).T, 1, r"no gaps in a row, got strides \(1, 5\)"),
        (torch.zeros(5, 0), 1, r"vocabulary V .* 1..1048576, got 0"),
        (torch.zeros(5, 8), 0, r"count must be in 1..8, got 0"),
        (torch.zeros(5, 8), 9, r"count must be in 1..8, got 9"),
        (torch.zeros(5, 500), 129, r"count must be in 1..128, got 129"),
    ],
)
def test_depth_topk(op: Callable[..., object], logits, count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(logits, count)


@pytest.mark.parametrize("op", [pick_argmax, pick_argmax_reference])
def test_pick_argmax(op: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"logits must have shape"):
        op(torch.zeros(3))
    out = torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"out\[0\] must have shape \[3\], got \[2\]"):
        op(torch.zeros(3, 4), out=out)
    out = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"out\[1\] must be torch.bool, got torch.int8"):
        op(torch.zeros(3, 4), out=out)


@pytest.mark.parametrize("op", [pack_ancestors, pack_ancestors_reference])
def test_pack_ancestors(op: Callable[..., object]) -> None:
    count = torch.ones(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"rows B of parents must be in 1..256, got 257"):
        op(torch.zeros(2, 257, dtype=torch.int32), count)
    with pytest.raises(ValueError, match=r"parents must be .* got torch.float32"):
        op(torch.zeros(2, 4), count)
    with pytest.raises(ValueError, match=r"num_nodes must have shape \[3\], got \[2\]"):
        op(torch.zeros(3, 4, dtype=torch.int32), count)


@pytest.mark.parametrize("op", [accept_walk, accept_walk_reference])
def test_accept_walk(op: Callable[..., object]) -> None:
    rows = torch.zeros(2, 4, dtype=torch.int32)
    count = torch.ones(2, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"picks must have shape \[2, 4\], got \[2, 3\]"):
        op(rows, rows, count, rows[:, :3], max_depth=2)
    with pytest.raises(ValueError, match=r"parents must be torch.int32, got torch.int64"):
        op(rows, rows.long(), count, rows, max_depth=2)
    with pytest.raises(ValueError, match=r"max_depth must be in 0..255, got -1"):
        op(rows, rows, count, rows, max_depth=-1)


def test_compiled_kernels_refuse_tensors_of_the_cpu() -> None:
    rows = torch.zeros(1, 4, dtype=torch.int32)
    count = torch.ones(1, dtype=torch.int32)
    for call in (
        lambda: depth_topk(torch.zeros(2, 8), 2),
        lambda: pick_argmax(torch.zeros(2, 8)),
        lambda: pack_ancestors(rows, count),
        lambda: accept_walk(rows, rows, count, rows, max_depth=1),
    ):
        with pytest.raises(ValueError, match="CUDA device, got tensors on cpu"):
            call()


@pytest.mark.parametrize("vocabulary", [1, 31, 4096, 4097, 151_936, 262_144, 2**20])
@pytest.mark.parametrize("count", [1, 16, 128])
def test_parts_cover_the_vocabulary_and_fit_one_program(vocabulary: int, count: int) -> None:
    part, parts = split_vocabulary(vocabulary, count)
    assert part & (part - 1) == 0
    assert (parts - 1) * part < vocabulary <= parts * part
    assert parts * count <= 8192
