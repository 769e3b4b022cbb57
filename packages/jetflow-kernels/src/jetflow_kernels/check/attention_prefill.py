"""Causal attention of prompts and chunks of them against float64, for versions that have it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch

from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.attention.prefill import PREFILL_BACKENDS, PrefillBackend, prefill_attention
from jetflow_kernels.check.attention_values import check_result, names, poison_memory
from jetflow_kernels.check.batches import Shape, make_batch
from jetflow_kernels.check.promises import PROMISES
from jetflow_kernels.check.tasks import Task

ROWS = (1, 700, 0, 128, 257, 64)
PREFIXES = (0, 0, 9, 130, 1000, 4000)


def prompts(
    device: str, *, backend: PrefillBackend, shape: Shape, rows: tuple[int, ...],
    prefixes: tuple[int, ...],
) -> tuple[int, float]:  # fmt: skip
    """Whole prompts and chunks behind others in one call, and each by itself."""
    errors = []
    batches = [(rows, prefixes), *(((n,), (p,)) for n, p in zip(rows, prefixes, strict=True))]
    for nodes, before in batches:
        batch = make_batch(nodes, before, replace(shape, masks=("chain",)), device)
        given = dict(batch.arguments)
        given["cu_rows"] = given.pop("cu_nodes")
        del given["ancestors"]
        out = torch.full_like(given["q"], torch.nan)
        lse = torch.full(out.shape[:2], torch.nan, device=device)
        poison_memory(device)
        prefill_attention(**given, out=out, lse=lse, backend=backend)
        errors.append(check_result(batch, out, lse, backend, device))
    return len(batches), max(errors)


def tasks(backends: Sequence[Backend], *, small: bool) -> Iterator[Task]:
    """The list; ``small`` for short prompts."""
    for backend in PREFILL_BACKENDS:
        if backend not in backends:
            continue
        takes = PROMISES[backend]
        rows, prefixes = ((3, 9, 0), (0, 5, 2)) if small else (ROWS, PREFIXES)
        for dtype in takes.types:
            for dim, page, packed in ((64, 16, True), (128, 64, False), (128, 128, False)):
                shape = Shape(
                    heads=(8, 2), dim=dim, page=page, packed=packed, dtype=dtype,
                    finite_page=takes.finite_page,
                )  # fmt: skip
                yield Task(
                    list="prompts are causal", backend=backend, dtype=names(dtype),
                    case=f"D {dim}, page {page}, packed {packed}",
                    run=partial(
                        prompts, backend=backend, shape=shape, rows=rows, prefixes=prefixes
                    ),
                )  # fmt: skip
