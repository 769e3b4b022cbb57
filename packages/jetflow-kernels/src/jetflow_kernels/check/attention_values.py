"""Tree attention against float64: rows, prefixes, masks, heads, pages, types and layouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor

from jetflow_kernels.attention import plan
from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.attention.op import tree_attention
from jetflow_kernels.check.batches import Batch, Shape, make_batch
from jetflow_kernels.check.promises import HALVES, PROMISES
from jetflow_kernels.check.tasks import Task

ATOL = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
NODES = (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256)
# Twice the error of exact sums that are rounded where kernels round, and one step of the type for
# scores and sums in float32.
OVER_ROUNDED = 2.0


def prefixes_for(page: int) -> tuple[int, ...]:
    """Borders of pages, tiles, words and pieces, and a long one."""
    borders = (page, 64, 128, 256)
    near = {border + step for border in borders for step in (-1, 0, 1)}
    return (0, 1, *sorted(near), 5000)


def names(dtype: torch.dtype) -> str:
    """``bfloat16`` and so on."""
    return str(dtype).removeprefix("torch.")


def poison_memory(device: str) -> None:
    """Leaves NaN in the memory that the next scratch tensors are made of."""
    if device == "cuda":
        # As large and as small as what a call asks for, since the allocator keeps them apart.
        held = [torch.full((size,), torch.nan, device=device) for size in (1 << 25, 1 << 17, 256)]
        del held


def largest_error(got: Tensor, want: Tensor) -> float:
    """The largest error of results against float64.

    Raises:
        RuntimeError: it is past what the type allows for results of size 1, and in proportion
            where they are larger.
    """
    off = (got.double() - want).abs()
    allowed = ATOL[got.dtype]
    if not float((off / want.abs().clamp(min=1)).max()) <= allowed:
        raise RuntimeError(f"off by {float(off.max())}, allowed {allowed} at size 1")
    return float(off.max())


def compare(batch: Batch, backend: Backend, device: str, *, cut: plan.Cut = "by_shapes") -> float:
    """Makes one call and holds it against ``check_result``; returns the largest error."""
    q = batch.arguments["q"]
    out = torch.full_like(q, torch.nan)
    lse = torch.full(q.shape[:2], torch.nan, device=q.device)
    poison_memory(device)
    tree_attention(**batch.arguments, out=out, lse=lse, backend=backend, cut=cut)
    return check_result(batch, out, lse, backend, device)


def check_result(batch: Batch, out: Tensor, lse: Tensor, backend: Backend, device: str) -> float:
    """Holds results against float64, exact and rounded; returns the largest error.

    Raises:
        RuntimeError: an error is past what is allowed, or padding is not 0.
    """
    want, want_lse = batch.answer()
    error = largest_error(out, want)
    # On the CPU the interpreter cuts bfloat16 off where a GPU rounds.
    if out.dtype in HALVES and device == "cuda":
        rounded = float((batch.rounded().double() - want).abs().max())
        allowed = OVER_ROUNDED * rounded + torch.finfo(out.dtype).eps
        if not error <= allowed:
            raise RuntimeError(f"off by {error}, exact sums that are rounded by {rounded}")
    used = batch.used
    if used:
        check_lse(lse[:used], want_lse[:used], backend)
    if out[used:].any() or not torch.isneginf(lse[used:]).all():
        raise RuntimeError("padding rows are not 0 with a log-sum-exp of -inf")
    return error


def check_lse(got: Tensor, want: Tensor, backend: Backend) -> None:
    """Holds log-sum-exps against float64.

    Raises:
        RuntimeError: an error is past what the version promises.
    """
    off, allowed = float((got.double() - want).abs().max()), PROMISES[backend].lse_atol
    if not off <= allowed:
        raise RuntimeError(f"log-sum-exp off by {off}, allowed {allowed}")


def batch_of_many(
    device: str, *, backend: Backend, shape: Shape, first: int, requests: int,
    nodes: tuple[int, ...], prefixes: tuple[int, ...],
) -> tuple[int, float]:  # fmt: skip
    """Requests ``first ..`` of the list of all pairs of rows and prefixes, in one call."""
    places = range(first, first + requests)
    # Both lists go round, and their lengths have no common divisor.
    rows = [nodes[place % len(nodes)] for place in places]
    before = [prefixes[place % len(prefixes)] for place in places]
    batch = make_batch(rows, before, shape, device, seed=first)
    return requests, compare(batch, backend, device)


def each_alone(
    device: str, *, backend: Backend, shape: Shape, nodes: tuple[int, ...], prefix: int
) -> tuple[int, float]:
    """Requests of one tree, each by itself; once at the borders of its own pieces."""
    errors = []
    for count in nodes:
        piece = plan.chunk_length(prefix, count, shape.heads[0])
        for before in (prefix, piece - 1, piece, piece + 1):
            batch = make_batch([count], [before], shape, device, seed=count)
            errors.append(compare(batch, backend, device))
    return len(errors), max(errors)


def short_contexts(
    device: str, *, backend: Backend, shape: Shape, nodes: tuple[int, ...]
) -> tuple[int, float]:
    """Contexts around a page and shorter, in one batch for each number of rows."""
    before = (1, 8, 15, 16, 17, 63, 64, 65)
    errors = [
        compare(make_batch([count] * 8, before, shape, device, seed=count), backend, device)
        for count in nodes
    ]
    return 8 * len(errors), max(errors)


def strided_queries(device: str, *, backend: Backend, shape: Shape) -> tuple[int, float]:
    """Queries that are a slice of a fused tensor, and a transposed one: the same bits."""
    batch = make_batch((21, 19, 7), (44, 3, 17), shape, device)
    q = batch.arguments["q"]
    want = tree_attention(**batch.arguments, backend=backend)
    rows, heads, dim = q.shape
    fused = torch.full((rows, 3 * heads * dim), torch.nan, dtype=q.dtype, device=device)
    slice_of_it = fused[:, heads * dim : 2 * heads * dim].view(rows, heads, dim)
    slice_of_it.copy_(q)
    turned = q.transpose(0, 1).contiguous().transpose(0, 1)
    for given in (slice_of_it, turned):
        got = tree_attention(**{**batch.arguments, "q": given}, backend=backend)
        if not torch.equal(got, want):
            raise RuntimeError(f"other bits for queries with strides {given.stride()}")
    return 2, compare(batch, backend, device)


def chains_are_causal(device: str, *, backend: Backend, shape: Shape) -> tuple[int, float]:
    """A chain is causal attention over prefix and rows, by a mask without any tree."""
    batch = make_batch((5, 70, 1), (0, 130, 64), replace(shape, masks=("chain",)), device)
    got = tree_attention(**batch.arguments, backend=backend)
    error = 0.0
    for request in range(3):
        q, k, v = (each[None] for each in batch._heads_first(request, torch.float64))
        rows, length = q.shape[2], k.shape[2]
        below = torch.ones(rows, length, dtype=torch.bool, device=device)
        below = below.tril(length - rows)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~below, -torch.inf)
        want = scores.softmax(-1) @ v
        mine = got[batch.rows_of(request)]
        error = max(error, largest_error(mine, want[0].transpose(0, 1)))
    return 3, error


def refusals(device: str, *, backend: Backend) -> tuple[int, float]:
    """What a version does not take is refused by name."""
    held, takes = 0, PROMISES[backend]
    shapes = [Shape(dim=80)]
    shapes += [Shape(dtype=torch.float32)] if torch.float32 not in takes.types else []
    shapes += [Shape(dim=256)] if 256 not in takes.dims else []
    for shape in shapes:
        batch = make_batch((3,), (5,), shape, device)
        try:
            tree_attention(**batch.arguments, backend=backend)
        except ValueError:
            held += 1
        else:
            raise RuntimeError(f"{shape} was not refused")
    return held, 0.0


def tasks(backends: Sequence[Backend], *, small: bool) -> Iterator[Task]:
    """The lists; ``small`` for Triton's interpreter."""
    for backend in backends:
        takes = PROMISES[backend]
        types, dims = takes.types, takes.dims
        yield from _pairs(backend, small=small)
        for dtype in types[1:] if small else types:
            shape = Shape(
                heads=(2, 1) if small else (8, 2), dtype=dtype, dim=64 if small else 128,
                finite_page=takes.finite_page,
            )  # fmt: skip
            for name, run in (
                ("one request alone", partial(
                    each_alone, shape=replace(shape, page=64 if small else 128),
                    nodes=(2, 5) if small else NODES, prefix=130 if small else 1000,
                )),
                ("strided queries", partial(strided_queries, shape=shape)),
                ("chains are causal", partial(chains_are_causal, shape=shape)),
            ):  # fmt: skip
                yield Task(
                    list=name, backend=backend, dtype=names(dtype), case=f"D {shape.dim}",
                    run=partial(run, backend=backend),
                )  # fmt: skip
        heads = ((2, 1),) if small else ((14, 2), (32, 8))
        for shape in (
            Shape(heads=each, page=page, dim=dim, dtype=types[page // 64], words=4)
            for each, page, dim in product(heads, (16, 64), dims[:1] if small else dims)
        ):
            counts = (1, 2) if small else (1, 2, 17, 63, 64, 65, 255, 256)
            yield Task(
                list="short contexts", backend=backend, dtype=names(shape.dtype),
                case=f"heads {shape.heads}, page {shape.page}, D {shape.dim}",
                run=partial(short_contexts, backend=backend, shape=shape, nodes=counts),
            )  # fmt: skip
        yield Task(
            list="refusals", backend=backend, dtype="any", case="types and head dims",
            run=partial(refusals, backend=backend),
        )  # fmt: skip


def _pairs(backend: Backend, *, small: bool) -> Iterator[Task]:
    """Batches of 32 that go through all pairs of rows and prefixes, each with other shapes."""
    takes = PROMISES[backend]
    types, dims = takes.types, takes.dims
    groups = (1, 3) if small else (1, 2, 3, 4, 8)
    pages = (16, 48) if small else (16, 32, 48, 64, 128, 256)
    requests = 3 if small else 32
    for number, (group, page) in enumerate(product(groups, pages)):
        shape = Shape(
            heads=(2 * group, 2), dim=dims[number % (1 if small else 2)], page=page,
            dtype=types[number % len(types)], packed=bool((number // len(pages) + number) % 2),
            words=0 if small else 4, finite_page=takes.finite_page,
        )  # fmt: skip
        if number % 7 == 6:
            shape = replace(shape, dim=dims[-1])
        yield Task(
            list="rows x prefixes", backend=backend, dtype=names(shape.dtype),
            case=f"G {group}, page {page}, D {shape.dim}, packed {shape.packed}",
            run=partial(
                batch_of_many, backend=backend, shape=shape, first=number * requests,
                requests=requests, nodes=(1, 2, 15) if small else NODES,
                prefixes=(0, 1, page, 130) if small else prefixes_for(page),
            ),
        )  # fmt: skip
