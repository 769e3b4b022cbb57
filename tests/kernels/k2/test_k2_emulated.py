"""The kernel's sources, run on the CPU, equal the float64 reference; no schedule hangs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels.attention import plan

ATOL = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
CLUSTERS = range(2, plan.MAX_CLUSTER + 1)
# Nodes, prefixes, page, heads, dim, type, rows of a tile, packed layout.
CASES: list[tuple[Any, ...]] = [
    ((1,), (0,), 16, (1, 1), 64, torch.bfloat16, 128, False),
    ((5, 0, 3), (130, 7, 64), 48, (4, 2), 64, torch.bfloat16, 128, True),
    ((70,), (61,), 24, (2, 1), 64, torch.bfloat16, 128, False),
]
QUICK_CLUSTER: tuple[Any, ...] = ((20,), (110,), 16, (3, 1), 64, torch.bfloat16, 128, False)
SLOW: list[tuple[Any, ...]] = [
    ((5, 2), (40, 0), 16, (2, 1), 128, torch.bfloat16, 64, False),
    ((5, 0, 3), (130, 7, 64), 48, (4, 2), 64, torch.float16, 64, True),
    ((33, 1), (130, 300), 128, (4, 1), 128, torch.float16, 128, True),
    ((129,), (191,), 64, (2, 1), 64, torch.float16, 64, False),
    ((255, 3), (127, 640), 256, (3, 1), 64, torch.bfloat16, 128, False),
    ((256,), (1,), 16, (2, 1), 128, torch.float16, 128, True),
    ((65,), (400,), 40, (8, 2), 128, torch.bfloat16, 128, False),
]


def _check(
    make_batch: Callable[..., Any],
    emulate: Callable[..., Any],
    case: Any,
    scale: float | None = None,
    cluster: int = plan.BY_LENGTH,
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
    for programs, seed in ((1, 1), (5, 2)) if cluster <= 1 else ((1, 1), (3, 2)):
        got, lse = emulate(
            arguments, scale=factor, rows=rows, programs=programs, seed=seed, cluster=cluster
        )
        # Comparisons that NaN does not pass.
        assert (got.double() - want).abs().max() <= ATOL[dtype]
        alike = torch.isclose(lse.double(), want_lse, rtol=0, atol=1e-5)
        assert alike.all()
        # Neither the programs nor the order in which threads run may change a bit.
        assert first is None or torch.equal(got, first)
        first = got


@pytest.mark.parametrize("case", CASES, ids=str)
def test_short(make_batch: Callable[..., Any], emulate: Callable[..., Any], case: Any) -> None:
    _check(make_batch, emulate, case)


@pytest.mark.parametrize(
    ("case", "cluster"), [(CASES[1], 1), (CASES[2], 1), (QUICK_CLUSTER, 4)], ids=str
)
def test_clusters(
    make_batch: Callable[..., Any], emulate: Callable[..., Any], case: Any, cluster: int
) -> None:
    _check(make_batch, emulate, case, cluster=cluster)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "cluster"),
    # Programs are threads here, and a cluster of eight takes the two cores half a minute.
    [
        *((CASES[0], cluster) for cluster in CLUSTERS),
        *((case, cluster) for case in [*CASES[1:], *SLOW[:2]] for cluster in (2, 3)),
    ],
    ids=str,
)
def test_clusters_of_every_size(
    make_batch: Callable[..., Any], emulate_any: Callable[..., Any], case: Any, cluster: int
) -> None:
    _check(make_batch, emulate_any, case, cluster=cluster)


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [plan.BY_LENGTH, 2])
@pytest.mark.parametrize("case", SLOW[2:], ids=str)
def test_long(
    make_batch: Callable[..., Any], emulate_any: Callable[..., Any], case: Any, cluster: int
) -> None:
    _check(make_batch, emulate_any, case, cluster=cluster)


@pytest.mark.parametrize("scale", [-0.3, 0.0])
def test_scales(make_batch: Callable[..., Any], emulate: Callable[..., Any], scale: float) -> None:
    case = ((5,), (70,), *CASES[0][2:])
    _check(make_batch, emulate, case, scale, cluster=2 if scale else plan.BY_LENGTH)


@pytest.mark.parametrize("cluster", [plan.BY_LENGTH, 2])
def test_a_request_does_not_feel_the_others(
    make_batch: Callable[..., Any], emulate: Callable[..., Any], cluster: int
) -> None:
    shape: dict[str, Any] = {"heads": (2, 1), "dim": 64, "dtype": torch.bfloat16}
    batch = make_batch((5, 20, 3), (300, 9, 64), **shape)
    call: dict[str, Any] = {"scale": 0.125, "rows": 128, "cluster": cluster}
    together = emulate(batch.arguments, **call)[0]
    # The same rows and requests in all, other prefixes and sizes beside the first one.
    others = dict(batch.arguments)
    others["cu_nodes"] = torch.tensor([0, 5, 9, 28], dtype=torch.int32)
    others["prefix_len"] = torch.tensor([300, 0, 30], dtype=torch.int32)
    assert torch.equal(emulate(others, **call)[0][:5], together[:5])
    # Descendants more or less, up to a power of two, change none of the others' bits.
    grown = make_batch((8,), (300,), **shape)
    whole = emulate(grown.arguments, **call)[0]
    fewer = {**grown.arguments, "cu_nodes": torch.tensor([0, 5], dtype=torch.int32)}
    assert torch.equal(emulate(fewer, **call)[0][:5], whole[:5])


def test_cut_by_request_a_request_is_itself_in_every_batch(
    make_batch: Callable[..., Any], emulate: Callable[..., Any]
) -> None:
    """What ``cut="by_request"`` starts: tiles of all batches, pieces by length."""
    shape: dict[str, Any] = {"heads": (2, 1), "dim": 64, "dtype": torch.bfloat16}
    batch = make_batch((5, 1, 20), (300, 9, 64), padding=0, **shape)
    call: dict[str, Any] = {"scale": 0.125, "rows": plan.tiles_of_all(64, torch.bfloat16).rows}
    together = emulate(batch.arguments, **call, cluster=plan.BY_LENGTH)[0]
    # Cut by shapes, a tile has three programs alone and one in a batch of four; both are within the
    # tolerance of the type.
    assert plan.cluster_size(128, 1, 4, 8, capacity=1152, tile_rows=128) == 3
    assert plan.cluster_size(128 * 4, 4, 4, 8, capacity=1152, tile_rows=128) == 1
    by_shapes = emulate(batch.arguments, **call, cluster=1)[0]
    starts = batch.cu_nodes.tolist()
    for request in range(3):
        mine = slice(*starts[request : request + 2])
        alone = {
            **batch.arguments,
            "q": batch.q[mine],
            "ancestors": batch.ancestors[mine],
            "page_table": batch.page_table[request : request + 1],
            "cu_nodes": torch.tensor([0, mine.stop - mine.start], dtype=torch.int32),
            "prefix_len": batch.prefix_len[request : request + 1],
        }
        assert torch.equal(emulate(alone, **call, cluster=plan.BY_LENGTH)[0], together[mine])
        otherwise = emulate(alone, **call, cluster=3)[0]
        assert (otherwise.double() - by_shapes[mine].double()).abs().max() <= 2 * ATOL[
            alone["q"].dtype
        ]
    assert not torch.equal(by_shapes, together)


def test_a_row_that_sees_nothing_and_padding(
    make_batch: Callable[..., Any], emulate: Callable[..., Any]
) -> None:
    batch = make_batch((4,), (0,), heads=(2, 1), dim=64, dtype=torch.bfloat16)
    batch.ancestors[2] = 0
    for cluster in (plan.BY_LENGTH, 2):
        got, lse = emulate(batch.arguments, scale=0.1, rows=128, cluster=cluster)
        assert torch.equal(got[2], torch.zeros_like(got[2]))
        assert torch.equal(got[4:], torch.zeros_like(got[4:]))
        assert torch.isneginf(lse[2]).all() and torch.isneginf(lse[4:]).all()
        assert torch.isfinite(lse[[0, 1, 3]]).all()
