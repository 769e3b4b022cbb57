"""Tree attention captured once and replayed with other prefixes, trees and sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.attention.op import tree_attention
from jetflow_kernels.check.attention_bits import expect_equal
from jetflow_kernels.check.attention_values import check_lse, largest_error, names
from jetflow_kernels.check.batches import Shape, make_batch
from jetflow_kernels.check.promises import HALVES
from jetflow_kernels.check.tasks import Task

# Rows and prefixes of four requests: longer, shorter, none at all, the largest.
ROUNDS = (
    ((70, 5, 1, 64), (300, 64, 0, 17)),
    ((1, 1, 1, 1), (4000, 1, 128, 127)),
    ((0, 128, 0, 3), (5, 511, 9, 0)),
    ((256, 0, 1, 0), (5000, 3, 2, 1)),
    ((64, 64, 64, 64), (127, 128, 129, 1000)),
    ((0, 0, 0, 0), (1, 2, 3, 4)),
    ((255, 1, 0, 0), (0, 0, 0, 0)),
)
SMALL_ROUNDS = (((3, 0), (17, 1)), ((0, 2), (1, 130)))


def replays(
    device: str, *, backend: Backend, shape: Shape, rounds: tuple[tuple[tuple[int, ...], ...], ...]
) -> tuple[int, float]:
    """One graph through all rounds and back; without a GPU the same tensors, called anew."""
    made = [
        make_batch(nodes, prefixes, shape, device, seed=seed)
        for seed, (nodes, prefixes) in enumerate(rounds)
    ]
    # The same calls in tensors of one size, since a graph has fixed ones.
    sizes = {
        name: [max(batch.arguments[name].shape[axis] for batch in made) for axis in range(dims)]
        for name, dims in (
            ("q", 3), ("k_pool", 4), ("v_pool", 4), ("page_table", 2), ("cu_nodes", 1),
            ("prefix_len", 1), ("ancestors", 2),
        )
    }  # fmt: skip
    room: dict[str, Any] = {
        name: torch.zeros(size, dtype=made[0].arguments[name].dtype, device=device)
        for name, size in sizes.items()
    }
    out, lse = torch.empty_like(room["q"]), torch.empty(sizes["q"][:2], device=device)

    def call() -> None:
        tree_attention(**room, out=out, lse=lse, backend=backend)

    call()
    replay = call
    if device == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        replay = graph.replay
    error = 0.0
    for batch in (*made, *made[::-1]):
        for name, tensor in room.items():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
            given = batch.arguments[name]
            tensor[tuple(slice(size) for size in given.shape)] = given
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        replay()
        again = torch.full_like(out, torch.nan)
        tree_attention(**room, out=again, backend=backend)
        expect_equal("replayed and called", out, again)
        want, want_lse = batch.answer()
        used = batch.used
        if out[used:].any() or not torch.isneginf(lse[used:]).all():
            raise RuntimeError("padding rows are not 0 with a log-sum-exp of -inf")
        if used:
            error = max(error, largest_error(out[:used], want[:used]))
            check_lse(lse[:used], want_lse[:used], backend)
    return 2 * len(made), error


def tasks(backends: Sequence[Backend], *, small: bool) -> Iterator[Task]:
    """The list; ``small`` for Triton's interpreter."""
    rounds = SMALL_ROUNDS if small else ROUNDS
    for backend in backends:
        for dtype in HALVES[1:] if small else HALVES:
            shape = Shape(
                heads=(2, 1) if small else (8, 2), dim=64 if small else 128, page=64, dtype=dtype,
                words=1 if small else 4,
            )  # fmt: skip
            yield Task(
                list="graph replays", backend=backend, dtype=names(dtype),
                case=f"{len(rounds)} rounds and back",
                run=partial(replays, backend=backend, shape=shape, rounds=rounds),
                captures=True,
            )  # fmt: skip
