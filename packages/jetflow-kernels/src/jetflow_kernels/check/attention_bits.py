"""Tree attention bit by bit: what a row does not see, and how it is stored, change nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.attention.op import tree_attention
from jetflow_kernels.check.attention_values import (
    compare,
    largest_error,
    names,
    poison_memory,
)
from jetflow_kernels.check.batches import Batch, Shape, make_batch
from jetflow_kernels.check.promises import HALVES, PROMISES
from jetflow_kernels.check.tasks import Task


def expect_equal(what: str, got: Tensor, want: Tensor) -> None:
    """Raises RuntimeError where bits differ, NaN included."""
    if not torch.equal(got, want):
        rows = (got != want).flatten(1).any(1).nonzero().flatten().tolist()
        raise RuntimeError(f"{what}: other bits in rows {rows[:20]}")


def some_of(batch: Batch, requests: Sequence[int]) -> dict[str, Any]:
    """Some requests of a batch in a call of their own, in this order."""
    arguments = batch.arguments
    device = arguments["q"].device
    chosen = torch.tensor(requests, device=device)
    starts = torch.tensor([0, *(batch.nodes[request] for request in requests)])
    return {
        **arguments,
        **{
            name: torch.cat([arguments[name][batch.rows_of(request)] for request in requests])
            for name in ("q", "ancestors")
        },
        **{name: arguments[name][chosen] for name in ("page_table", "prefix_len")},
        "cu_nodes": starts.cumsum(0).int().to(device),
    }


def among_empty_ones(batch: Batch, request: int) -> dict[str, Any]:
    """A call of the same shapes in which only one request takes part, its rows in front."""
    arguments, rows = batch.arguments, batch.nodes[request]
    starts = torch.zeros_like(arguments["cu_nodes"])
    starts[request + 1 :] = rows
    moved = {**arguments, "cu_nodes": starts}
    for name in ("q", "ancestors"):
        moved[name] = arguments[name].clone()
        moved[name][:rows] = arguments[name][batch.rows_of(request)]
    return moved


def alone_or_together(
    device: str, *, backend: Backend, shape: Shape, nodes: tuple[int, ...],
    prefixes: tuple[int, ...],
) -> tuple[int, float]:  # fmt: skip
    """Cut by request: in the batch, alone, in a batch of two, and among empty ones."""
    batch = make_batch(nodes, prefixes, shape, device, seed=sum(nodes))
    call = partial(tree_attention, backend=backend, cut="by_request")
    want = call(**batch.arguments)
    for request, rows in enumerate(nodes):
        mine = want[batch.rows_of(request)]
        poison_memory(device)
        got = call(**some_of(batch, [request]))
        expect_equal(f"request {request} alone", got, mine)
        before = (request + 1) % len(nodes)
        got = call(**some_of(batch, [before, request]))[nodes[before] :]
        expect_equal(f"request {request} behind request {before}", got, mine)
        got = call(**among_empty_ones(batch, request))
        expect_equal(f"request {request} among empty ones", got[:rows], mine)
        if got[rows:].any():
            raise RuntimeError("rows behind the last tree are not 0")
    return 3 * len(nodes), compare(batch, backend, device, cut="by_request")


def equal_shapes(
    device: str, *, backend: Backend, shape: Shape, rows: int, prefixes: tuple[int, ...]
) -> tuple[int, float]:
    """Cut by shapes: the same bits in calls of one T and B, the tolerance of the type alone."""
    batch = make_batch([rows] * len(prefixes), prefixes, shape, device, seed=rows)
    want = tree_attention(**batch.arguments, backend=backend)
    answer = batch.answer()[0]
    errors = [compare(batch, backend, device)]
    for request in range(len(prefixes)):
        mine = batch.rows_of(request)
        poison_memory(device)
        got = tree_attention(**among_empty_ones(batch, request), backend=backend)
        expect_equal(f"request {request} among empty ones", got[:rows], want[mine])
        if got[rows:].any():
            raise RuntimeError("rows behind the last tree are not 0")
        got = tree_attention(**some_of(batch, [request]), backend=backend)
        errors.append(largest_error(got, answer[mine]))
    return 2 * len(prefixes), max(errors)


def pages_change_nothing(
    device: str, *, backend: Backend, shape: Shape, nodes: tuple[int, ...],
    prefixes: tuple[int, ...], pages: tuple[int, ...],
) -> tuple[int, float]:  # fmt: skip
    """Pages of every size, in other orders, in both layouts; and every run again."""
    want = None
    held = 0
    for page in pages:
        for order, packed in ((0, False), (1, True), (2, False)):
            other = replace(shape, page=page, pages_seed=order, packed=packed)
            batch = make_batch(nodes, prefixes, other, device, seed=7)
            for _ in range(2):
                poison_memory(device)
                got = tree_attention(**batch.arguments, backend=backend)
                want = got if want is None else want
                expect_equal(f"page {page}, order {order}, packed {packed}", got, want)
                held += 1
    return held, 0.0


def every_bit(
    device: str, *, backend: Backend, dtype: torch.dtype, rows: int, at_once: int
) -> tuple[int, float]:
    """Every bit of the mask turned over, by itself: that row changes and no other does."""
    shape = Shape(heads=(1, 1), dtype=dtype, padding=0, masks=("random",))
    batch = make_batch([rows], [3], shape, device, seed=rows)
    # Scores that are nearly alike, so that each key weighs enough to be seen in the result.
    batch.arguments["q"] *= 0.1
    words = batch.arguments["ancestors"]
    same = {name: batch.arguments[name] for name in ("k_pool", "v_pool")}
    many = {
        **same,
        "q": batch.arguments["q"].repeat(at_once, 1, 1),
        "page_table": batch.arguments["page_table"].repeat(at_once, 1),
        "cu_nodes": torch.arange(0, rows * at_once + 1, rows, dtype=torch.int32, device=device),
        "prefix_len": batch.arguments["prefix_len"].repeat(at_once),
    }
    before = tree_attention(**many, ancestors=words.repeat(at_once, 1), backend=backend)
    request = torch.arange(at_once, device=device)
    for first in range(0, rows * rows, at_once):
        # The last bits again where the list ends within a batch.
        flips = (first + request).clamp(max=rows * rows - 1)
        row, column = flips // rows, flips % rows
        turned = words.repeat(at_once, 1)
        bit = torch.ones_like(column) << (column % 64)
        turned[request * rows + row, column // 64] ^= bit
        after = tree_attention(**many, ancestors=turned, backend=backend)
        changed = (after != before).flatten(1).any(1).view(at_once, rows)
        expected = torch.zeros_like(changed)
        expected[request, row] = True
        if not torch.equal(changed, expected):
            wrong = (changed != expected).any(1).nonzero()[0]
            raise RuntimeError(
                f"bit {int(column[wrong])} of row {int(row[wrong])} changed rows "
                f"{changed[wrong].flatten().nonzero().flatten().tolist()}"
            )
    return rows * rows, 0.0


def branches_apart(
    device: str, *, backend: Backend, shape: Shape, rows: int, prefix: int
) -> tuple[int, float]:
    """A key that is NaN with a huge value reaches the rows that see it, and no other bit."""
    batch = make_batch([rows], [prefix], replace(shape, masks=("random",)), device, seed=3)
    before = tree_attention(**batch.arguments, backend=backend)
    held = 0
    for node in range(1, rows, max(1, rows // 12)):
        where = prefix + node
        place = int(batch.arguments["page_table"][0, where // shape.page]), where % shape.page
        saved = [batch.arguments[name][place].clone() for name in ("k_pool", "v_pool")]
        batch.arguments["k_pool"][place], batch.arguments["v_pool"][place] = torch.nan, 1e4
        after = tree_attention(**batch.arguments, backend=backend)
        for name, value in zip(("k_pool", "v_pool"), saved, strict=True):
            batch.arguments[name][place] = value
        sees = batch.seen[0][:, where]
        expect_equal(f"node {node}", after[:rows][~sees], before[:rows][~sees])
        if not torch.isnan(after[:rows][sees]).all():
            raise RuntimeError(f"rows that see node {node} do not all show it")
        held += 1
    return held, 0.0


def padding_and_later_rows(device: str, *, backend: Backend, shape: Shape) -> tuple[int, float]:
    """A tree of 5 in room for 8 is a tree of 5; rows that come later change none before them."""
    padded = make_batch([5], [40], replace(shape, padding=3), device)
    error = compare(padded, backend, device)
    if PROMISES[backend].by_request:
        bare = {name: padded.arguments[name] for name in padded.arguments}
        bare["q"], bare["ancestors"] = bare["q"][:5], bare["ancestors"][:5]
        want = tree_attention(**bare, backend=backend, cut="by_request")
        got = tree_attention(**padded.arguments, backend=backend, cut="by_request")
        expect_equal("5 rows in room for 8", got[:5], want)
    batch = make_batch([13], [150], replace(shape, masks=("deep",)), device)
    want = tree_attention(**batch.arguments, backend=backend)
    for count in (9, 11):
        fewer = {**batch.arguments, "cu_nodes": batch.arguments["cu_nodes"].clamp(max=count)}
        got = tree_attention(**fewer, backend=backend)
        expect_equal(f"the first {count} of 13 rows", got[:count], want[:count])
        if got[count:].any():
            raise RuntimeError("rows past the last one are not 0")
    return 3, error


def far_pages(
    device: str, *, backend: Backend, dtype: torch.dtype, elements: int, page: int, rows: int
) -> tuple[int, float]:
    """A request on the last 20 pages of a huge pool equals itself on the first 20."""
    shape = Shape(heads=(4, 2), dim=64, page=page, dtype=dtype)
    batch = make_batch((rows, 3), (page * 8 + 5, 7), shape, device)
    small = batch.arguments["k_pool"].shape[0]
    if small > 20:
        raise RuntimeError(f"the requests should fit 20 pages, they take {small}")
    pages = elements // (page * 2 * 64) + 40
    want = tree_attention(**batch.arguments, backend=backend)
    pools = []
    for name in ("k_pool", "v_pool"):
        pool = torch.empty(pages, page, 2, 64, dtype=dtype, device=device)
        pool[:20], pool[-20:] = torch.nan, torch.nan
        pool[:small] = pool[-20 : -20 + small or None] = batch.arguments[name]
        pools.append(pool)
    table = batch.arguments["page_table"]
    for shift in (0, pages - 20):
        moved = {"k_pool": pools[0], "v_pool": pools[1], "page_table": table + shift}
        got = tree_attention(**{**batch.arguments, **moved}, backend=backend)
        expect_equal(f"{shift} pages on", got, want)
    return 2, 0.0


def tasks(backends: Sequence[Backend], *, small: bool) -> Iterator[Task]:
    """The lists; ``small`` for Triton's interpreter."""
    for backend in backends:
        promises = PROMISES[backend]
        for dtype in HALVES[1:] if small else HALVES:
            shape = Shape(
                heads=(2, 1) if small else (32, 8), dim=64 if small else 128, dtype=dtype,
                finite_page=promises.finite_page,
            )  # fmt: skip
            bare = replace(shape, page=64, padding=0)
            prefixes = (130, 0, 17) if small else (0, 1, 17, 130, 64, 999, 2048, 5000)
            found: list[tuple[str, str, Any]] = [
                (
                    "equal shapes = equal bits", f"{rows} rows",
                    partial(equal_shapes, shape=bare, rows=rows, prefixes=prefixes),
                )
                for rows in ((3,) if small else (1, 16, 64, 200))
            ]  # fmt: skip
            mixed = (1, 3, 2) if small else (1, 16, 64, 200, 3, 256, 2, 129)
            found += [
                (
                    "alone = in a batch", f"rows {nodes}",
                    partial(alone_or_together, shape=bare, nodes=nodes, prefixes=prefixes),
                )
                for nodes in (((1,) * len(mixed), mixed) if promises.by_request else ())
            ]  # fmt: skip
            nodes = (3, 2) if small else (70, 3, 1, 255)
            before = (140, 17) if small else (140, 17, 700, 2100)
            pages = (16, 48) if small else (16, 32, 64, 128, 256)
            found += [
                (
                    "page sizes, orders, runs", f"rows {nodes}, pages {alike}",
                    partial(
                        pages_change_nothing, shape=shape, nodes=nodes, prefixes=before,
                        pages=alike,
                    ),
                )
                for alike in ([pages] if promises.any_page else [(page,) for page in pages])
            ]  # fmt: skip
            found += [
                (
                    "branches apart", "NaN keys",
                    partial(
                        branches_apart, shape=shape, rows=9 if small else 200,
                        prefix=20 if small else 600,
                    ),
                ),
                ("padding and later rows", "5 of 8, 9 of 13", partial(
                    padding_and_later_rows, shape=shape)),
                ("a pool past 2^31", f"{names(dtype)}", partial(
                    far_pages, dtype=dtype, elements=2**16 if small else 2**31, page=16,
                    rows=2 if small else 65)),
            ]  # fmt: skip
            found += [
                (
                    "every bit of the mask",
                    f"{rows} rows",
                    partial(every_bit, dtype=dtype, rows=rows, at_once=5 if small else 128),
                )
                for rows in ((5,) if small else (66, 256))
            ]
            for name, case, run in found:
                yield Task(
                    list=name, backend=backend, dtype=names(dtype), case=case,
                    run=partial(run, backend=backend),
                )  # fmt: skip
