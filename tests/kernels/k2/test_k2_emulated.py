"""The kernel's sources, run on the CPU, equal the float64 reference; no schedule hangs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

ATOL = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Nodes, prefixes, page, heads, dim, type, rows of a tile, packed layout.
CASES: list[tuple[Any, ...]] = [
    ((1,), (0,), 16, (1, 1), 64, torch.float16, 64, False),
    ((5, 2), (40, 0), 16, (2, 1), 128, torch.bfloat16, 64, False),
    ((5, 0, 3), (130, 7, 64), 48, (4, 2), 64, torch.float16, 64, True),
    ((70,), (61,), 24, (2, 1), 64, torch.bfloat16, 128, False),
    ((33, 1), (130, 300), 128, (4, 1), 128, torch.float16, 128, True),
]
SLOW: list[tuple[Any, ...]] = [
    ((129,), (191,), 64, (2, 1), 64, torch.float16, 64, False),
    ((255, 3), (127, 640), 256, (3, 1), 64, torch.bfloat16, 128, False),
    ((256,), (1,), 16, (2, 1), 128, torch.float16, 128, True),
    ((65,), (1000,), 40, (8, 2), 128, torch.bfloat16, 128, False),
]


def _check(
    make_batch: Callable[..., Any], emulate: Callable[..., Any], case: Any, scale: float | None
) -> None:
    nodes, prefixes, page, heads, dim, dtype, rows, packed = case
    batch = make_batch(nodes, prefixes, page=page, heads=heads, dim=dim, dtype=dtype)
    arguments = dict(batch.arguments)
    if packed:
        both = torch.cat([batch.k_pool, batch.v_pool], dim=-1).transpose(1, 2).contiguous()
        arguments["k_pool"], arguments["v_pool"] = (
            half.transpose(1, 2) for half in both.split(dim, dim=-1)
        )
    factor = dim**-0.5 if scale is None else scale
    want, want_lse = batch.dense(factor)
    first = None
    for programs, seed in ((1, 1), (5, 2)):
        got, lse = emulate(arguments, scale=factor, rows=rows, programs=programs, seed=seed)
        # Comparisons that NaN does not pass.
        assert (got.double() - want).abs().max() <= ATOL[dtype]
        alike = torch.isclose(lse.double(), want_lse, rtol=0, atol=1e-5)
        assert alike.all()
        # Neither the programs nor the order in which threads run may change a bit.
        assert first is None or torch.equal(got, first)
        first = got


@pytest.mark.parametrize("case", CASES, ids=str)
def test_short(make_batch: Callable[..., Any], emulate: Callable[..., Any], case: Any) -> None:
    _check(make_batch, emulate, case, None)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=str)
def test_long(make_batch: Callable[..., Any], emulate: Callable[..., Any], case: Any) -> None:
    _check(make_batch, emulate, case, None)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_scales(make_batch: Callable[..., Any], emulate: Callable[..., Any], scale: float) -> None:
    _check(make_batch, emulate, CASES[1], scale)
