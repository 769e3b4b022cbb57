"""The CUDA version's swift kernels, which no call chooses yet: the bits of those it chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.check.attention_bits import expect_equal
from jetflow_kernels.check.attention_values import NODES, check_result, names, poison_memory
from jetflow_kernels.check.batches import Batch, Shape, make_batch
from jetflow_kernels.check.promises import HALVES
from jetflow_kernels.check.tasks import Task

PREFIXES = (0, 64, 1000, 5000)
# Rows of one request in turn: fewer and more tiles than before, none at all.
TURNS = (70, 1, 0, 256, 17, 128)
CUT = (((70,), (1000,)), ((1,), (0,)), ((5, 0, 129), (130, 7, 640)))
SCALES = (-0.3, 0.0, 2e-3)


def start(arguments: dict[str, Any], out: Tensor, lse: Tensor, **how: Any) -> None:
    """One call of the CUDA version; ``how`` is of ``launch``, 1 over the root of D its scale."""
    # Triton, which this imports, is an extra.
    from jetflow_kernels.attention.k2.launch import launch

    how = {"scale": arguments["q"].shape[2] ** -0.5, **how}
    launch(TreeAttentionArguments(**arguments), out=out, lse=lse, **how)


def same_bits(batch: Batch, device: str, **how: Any) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of both kernels.

    Raises:
        RuntimeError: they differ in a bit.
    """
    results = []
    for swift in (False, True):
        out = torch.full_like(batch.arguments["q"], torch.nan)
        lse = torch.full(out.shape[:2], torch.nan, device=out.device)
        poison_memory(device)
        start(batch.arguments, out, lse, swift=swift, **how)
        results.append((out, lse))
    (want, want_lse), (got, got_lse) = results
    expect_equal(f"swift, {how}", got, want)
    expect_equal(f"log-sum-exps of swift, {how}", got_lse, want_lse)
    return got, got_lse


def lengths(device: str, *, shape: Shape) -> tuple[int, float]:
    """Requests alone, whose queries are asked for ahead, and many in one call."""
    pairs = list(product(NODES, PREFIXES))
    # Each pair alone, then every seventh together.
    calls = [[pair] for pair in pairs] + [pairs[place::7] for place in range(min(7, len(pairs)))]
    errors = []
    for seed, call in enumerate(calls):
        nodes, prefixes = zip(*call, strict=True)
        batch = make_batch(nodes, prefixes, shape, device, seed=seed)
        errors.append(check_result(batch, *same_bits(batch, device), "cuda", device))
    return 2 * len(calls), max(errors)


def cuts(device: str, *, shape: Shape) -> tuple[int, float]:
    """Every size of a cluster and pieces by length, placed early and not, few programs and all."""
    errors = []
    for nodes, prefixes in CUT:
        batch = make_batch(nodes, prefixes, shape, device)
        for cluster in (plan.BY_LENGTH, *range(1, plan.MAX_CLUSTER + 1)):
            for early, programs in ((True, None), (False, 8)):
                how = {"cluster": cluster, "early": early, "programs": programs}
                errors.append(check_result(batch, *same_bits(batch, device, **how), "cuda", device))
    return 2 * len(errors), max(errors)


def queries(device: str, *, shape: Shape) -> tuple[int, float]:
    """Queries that are a slice of a fused tensor, and scales that bulk copies do not know."""
    batch = make_batch((70,), (300,), shape, device)
    q = batch.arguments["q"]
    rows, heads, dim = q.shape
    want, lse = same_bits(batch, device)
    fused = torch.full((rows, 3 * heads * dim), torch.nan, dtype=q.dtype, device=device)
    slice_of_it = fused[:, heads * dim : 2 * heads * dim].view(rows, heads, dim)
    slice_of_it.copy_(q)
    for given in (slice_of_it, q.transpose(0, 1).contiguous().transpose(0, 1)):
        got = torch.full_like(want, torch.nan)
        start({**batch.arguments, "q": given}, got, lse.clone(), swift=True)
        expect_equal(f"queries with strides {given.stride()}", got, want)
    for scale in SCALES:
        same_bits(batch, device, scale=scale)
    return 2 + len(SCALES), check_result(batch, want, lse, "cuda", device)


def fill(room: dict[str, Tensor], batch: Batch) -> None:
    """Puts a call's tensors into those of the largest one."""
    for name, tensor in room.items():
        if tensor.is_floating_point():
            tensor.fill_(torch.nan)
        given = batch.arguments[name]
        tensor[tuple(slice(size) for size in given.shape)] = given


def replays(device: str, *, shape: Shape) -> tuple[int, float]:
    """One graph of a request alone with other rows each time, as the host never knows them."""
    made = [
        make_batch((count,), (19 * count,), shape, device, seed=count)
        for count in (max(TURNS), *TURNS)
    ]
    # As large as the largest one, with which it is captured.
    room = {name: torch.empty_like(given) for name, given in made[0].arguments.items()}
    out = torch.empty_like(room["q"])
    lse = torch.empty(out.shape[:2], device=device)
    want, want_lse = torch.empty_like(out), torch.empty_like(lse)
    call = partial(start, room, out, lse, swift=True)
    fill(room, made[0])
    call()
    replay: Callable[[], None] = call
    if device == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        replay = graph.replay
    for batch in made:
        fill(room, batch)
        for tensor in (out, lse, want, want_lse):
            tensor.fill_(torch.nan)
        replay()
        start(room, want, want_lse)
        expect_equal(f"replayed with {batch.nodes[0]} rows", out, want)
        expect_equal("their log-sum-exps", lse, want_lse)
    return 2 * len(made), 0.0


def tasks(backends: Sequence[Backend], *, small: bool) -> Iterator[Task]:
    """The lists, of ``cuda`` alone; none that are ``small``, since no interpreter runs them."""
    if small or "cuda" not in backends:
        return
    for number, (dtype, dim, group) in enumerate(product(HALVES, (64, 128), (1, 3, 4, 8))):
        page = (16, 48, 128, 256)[number % 4]
        shape = Shape(heads=(2 * group, 2), page=page, dim=dim, dtype=dtype, words=4)
        lists = [("swift: rows x prefixes", lengths, False), ("swift: queries", queries, False)]
        if group in (3, 4):
            lists += [("swift: cuts", cuts, False), ("swift: graph replays", replays, True)]
        for name, run, captures in lists:
            yield Task(
                list=name, backend="cuda", dtype=names(dtype),
                case=f"G {group}, page {page}, D {dim}", run=partial(run, shape=shape),
                captures=captures,
            )  # fmt: skip
