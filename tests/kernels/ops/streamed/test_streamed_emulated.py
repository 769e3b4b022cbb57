"""The kernel's sources, run on the CPU, equal the reference; no schedule hangs or changes them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels.ops.linear import gate_up_silu_reference, linear_reference
from jetflow_kernels.ops.linear_measure import apart
from jetflow_kernels.ops.streamed.launch import ProductParams
from jetflow_kernels.ops.streamed.variants import (
    SHARED_BYTES,
    STEP,
    VARIANTS,
    Streamed,
    Variant,
)

# Rows, columns of the result, inner dimension, rows and columns of a tile, shares, type, gated.
BF16, FP16 = torch.bfloat16, torch.float16
# More stages than lie in the ring, in each share.
WRAPPED = (14, 132, 1800, 16, 128, 2, BF16, False)
CASES: list[tuple[Any, ...]] = [
    (1, 128, 64, 16, 128, 1, BF16, False),
    (16, 260, 584, 16, 128, 2, BF16, False),
    (5, 136, 136, 16, 64, 1, BF16, True),
    (9, 64, 320, 16, 64, 4, BF16, True),
    (3, 300, 1000, 16, 64, 4, FP16, False),
    (12, 130, 560, 16, 128, 4, BF16, False),
    WRAPPED,
    (21, 140, 712, 32, 128, 2, BF16, False),
    (32, 104, 640, 32, 128, 4, FP16, True),
    (64, 520, 456, 64, 128, 1, BF16, False),
    (50, 200, 512, 64, 128, 4, FP16, False),
    (33, 72, 264, 64, 64, 2, BF16, True),
    (128, 128, 320, 128, 128, 2, BF16, False),
    (100, 264, 200, 128, 64, 1, FP16, True),
    (128, 72, 584, 128, 64, 4, BF16, True),
]


def _check(emulate: Callable[..., Any], case: Any) -> None:
    rows, outs, ins, tile, columns, shares, dtype, gated = case
    generator = torch.Generator().manual_seed(sum(case[:6]))
    halves = 2 if gated else 1
    # Rows of a wider matrix.
    x = torch.randn(rows, ins + 8, generator=generator).to(dtype)[:, :ins]
    weight = (torch.randn(halves * outs, ins, generator=generator) / ins**0.5).to(dtype)
    bias = None if gated or rows % 2 else torch.randn(outs, generator=generator).to(dtype)
    config = Streamed(rows=tile, columns=columns, shares=shares)
    want = gate_up_silu_reference(x, weight) if gated else linear_reference(x, weight, bias)
    first = emulate(x, weight, bias, config=config, gated=gated, seed=1)
    assert apart(first, want, gated=gated) is None
    again = emulate(x, weight, bias, config=config, gated=gated, seed=2)
    assert torch.equal(first, again)
    if shares == 1:  # tiles behind one another
        one = emulate(x, weight, bias, config=config, gated=gated, seed=4, programs=1)
        assert torch.equal(first, one)
    # A row's bits depend on no other row.
    alone = emulate(x[:1], weight, bias, config=config, gated=gated, seed=3)
    assert torch.equal(alone, first[:1])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(emulate_any: Callable[..., Any], case: Any) -> None:
    _check(emulate_any, case)


def _compare_sizes(library: Any, index: int, variant: Variant) -> None:
    sizes = (ctypes.c_int * 5)()
    library.emulated_sizes(index, sizes)
    columns, step, stages, threads, shared = sizes
    config = Streamed(rows=variant.rows, columns=variant.columns, shares=1)
    assert (columns, step, threads) == (config.columns, STEP, config.threads)
    assert (stages, shared) == (config.stages, config.shared_bytes)
    assert shared <= SHARED_BYTES


@pytest.mark.slow
def test_sizes_are_those_of_the_host(every: ctypes.CDLL) -> None:
    assert every.emulated_params_size() == ctypes.sizeof(ProductParams)
    for index, variant in enumerate(VARIANTS):
        _compare_sizes(every, index, variant)


# What the card would not forgive, one change each: the tests above would notice it.
BROKEN = {
    "slabs before all have read their stages": (
        "finish.cuh",
        "  cluster_sync();  // everybody has read the stages\n",
    ),
    "a stage given back unread": ("product.cuh", "    mma_wait<1>();\n"),
    "a stage not waited for": (
        "product.cuh",
        "      barrier_wait(room.empty(stage.index), stage.parity ^ 1);\n",
    ),
    "sums not waited for": ("finish.cuh", "  barrier_wait(room.received(), 0);\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_kernel_is_noticed(emulate_changed: Callable[..., Any], what: str) -> None:
    variant = Variant(dtype=BF16, rows=16, columns=128, gated=False)
    emulate = emulate_changed(variant, [(*BROKEN[what], "")])
    # What it did, or what came of it.
    with pytest.raises((RuntimeError, AssertionError)):
        _check(emulate, WRAPPED)
