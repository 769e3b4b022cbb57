"""Kernels with the shorter start and end give the same bits as the others, whatever the order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2.configurations import Configuration
from jetflow_kernels.attention.k2.parameters import Params, query_nodes, set_scale

ATOL = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
LISTED = plan.BY_LENGTH
# Nodes, prefixes, heads, cluster, clusters started.
SHORT: dict[str, tuple[Any, ...]] = {
    "one tile of one program": ((5,), (70,), (2, 1), 1, 1),
    "programs without an item": ((3,), (9,), (2, 1), 1, 3),
    "no rows at all": ((0,), (9,), (2, 1), 1, 2),
    "several items of a program": ((70,), (61,), (4, 1), 1, 1),
    "pieces by length": ((3,), (200,), (2, 1), LISTED, 1),
    "several requests": ((5, 0, 3), (130, 7, 64), (4, 2), 1, 1),
    "a program without positions": ((1,), (0,), (1, 1), 2, 1),
    "a cluster of two": ((40,), (100,), (4, 1), 2, 1),
    "a cluster of four": ((5,), (200,), (1, 1), 4, 1),
}
# And the head dim, the type and rows of a tile.
LONG: list[tuple[Any, ...]] = [
    (((33, 1), (130, 300), (4, 1), 3, 1), 128, torch.float16, 128),
    (((70,), (300,), (4, 1), 2, 1), 128, torch.bfloat16, 64),
    (((70, 2), (90, 200), (2, 2), 2, 1), 64, torch.float16, 64),
    (((30, 9), (40, 1), (3, 1), 2, 1), 64, torch.bfloat16, 128),
    (((129,), (191,), (2, 1), LISTED, 2), 128, torch.float16, 64),
    (((65,), (120,), (8, 2), 1, 3), 128, torch.bfloat16, 128),
    (((9,), (300,), (1, 1), 5, 1), 64, torch.bfloat16, 64),
]

ARRIVAL = "if (are_brought(p, item, number)) barrier_wait(shared.queries_full(), parities >> 1);"
SEVERAL = ((70, 1), (61, 3), (2, 1), 1, 1)
# Changes of the sources, a case that shows them, and what is noticed.
BREAKAGE: dict[str, tuple[list[tuple[str, str, str]], tuple[Any, ...], str]] = {
    "queries are multiplied before they are there": (
        [("consumer.cuh", ARRIVAL, "")], SEVERAL, "equal|copies",
    ),
    "queries come over those of the item before": (
        [("queries.cuh", "  barrier_wait(shared.queries_empty(), parity);\n", "")],
        SEVERAL, "equal|copies|wait for each other",
    ),
    "the parity of queries stays": (
        [("consumer.cuh", "    parities ^= 2;\n", "")], SEVERAL, "equal|copies|wait for each other",
    ),
    "nobody waits for queries that nobody needs": (
        [("producer.cuh", "if (S::SWIFT && known_ahead(p, number))", "if (false)")],
        SHORT["programs without an item"], "copies that nobody waited for",
    ),
    "a part goes to the wrong slot": (
        [("spread.cuh", "* p.cluster + share);", "* p.cluster);")],
        SHORT["a cluster of four"], "equal|wait for each other",
    ),
    "a part fewer is awaited than is sent": (
        [("spread.cuh", "return parts * others", "return (parts - 1) * others")],
        SHORT["a cluster of two"], "equal|wait for each other|ended program",
    ),
}  # fmt: skip


def _check(
    make_batch: Callable[..., Any],
    emulate: Callable[..., Any],
    case: tuple[Any, ...],
    *,
    dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    rows: int = 128,
    scale: float = 0.125,
    seeds: Sequence[int] = (1, 2),
) -> None:
    nodes, prefixes, heads, cluster, programs = case
    batch = make_batch(nodes, prefixes, heads=heads, dim=dim, dtype=dtype, page=48)
    call: dict[str, Any] = {"scale": scale, "rows": rows, "cluster": cluster}
    call |= {"programs": programs}
    want, want_lse = emulate(batch.arguments, **call)
    exact, _ = batch.dense(scale)
    assert (want.double() - exact).abs().max() <= ATOL[dtype]
    for seed in seeds:
        got, lse = emulate(batch.arguments, **call, seed=seed, swift=True)
        assert torch.equal(got, want) and torch.equal(lse, want_lse), "not equal"


@pytest.mark.parametrize("name", SHORT)
def test_bits_are_the_same(
    make_batch: Callable[..., Any], emulate: Callable[..., Any], name: str
) -> None:
    _check(make_batch, emulate, SHORT[name])


@pytest.mark.slow
@pytest.mark.parametrize(("case", "dim", "dtype", "rows"), LONG, ids=str)
def test_bits_are_the_same_in_every_kernel(
    make_batch: Callable[..., Any],
    emulate_any: Callable[..., Any],
    case: Any,
    dim: int,
    dtype: torch.dtype,
    rows: int,
) -> None:
    _check(make_batch, emulate_any, case, dim=dim, dtype=dtype, rows=rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKAGE)
def test_breakage_is_caught(
    make_batch: Callable[..., Any],
    emulate: Callable[..., Any],
    emulate_changed: Callable[..., Any],
    name: str,
) -> None:
    changes, case, expected = BREAKAGE[name]
    variant = Configuration(dtype=torch.bfloat16, dim=64, rows=128, swift=True)
    broken = emulate_changed(variant, changes)

    def either(given: dict[str, torch.Tensor], *, swift: bool = False, **how: Any) -> Any:
        return broken(given, swift=True, **how) if swift else emulate(given, **how)

    with pytest.raises(AssertionError, match=expected):
        _check(make_batch, either, case, seeds=range(12))


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_scales_that_registers_take_care_of(
    make_batch: Callable[..., Any], emulate: Callable[..., Any], scale: float
) -> None:
    _check(make_batch, emulate, ((5,), (70,), (2, 1), 2, 1), scale=scale)


@pytest.mark.parametrize(
    ("group", "scale", "nodes"),
    [(1, 1.0, 64), (4, 0.1, 16), (64, 0.1, 1), (3, 0.1, 0), (4, -0.1, 0), (4, 0.0, 0)],
)
def test_which_queries_come_by_bulk_copies(group: int, scale: float, nodes: int) -> None:
    params = Params(group=group)
    set_scale(params, scale)
    assert query_nodes(params) == nodes
