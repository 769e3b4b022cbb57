"""Products of few rows against float64, every configuration, and many of them in one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from jetflow_kernels.check import tolerances
from jetflow_kernels.check.attention_bits import expect_equal
from jetflow_kernels.check.attention_values import names, poison_memory
from jetflow_kernels.check.tasks import Task
from jetflow_kernels.ops.layer_steps import LayerSteps
from jetflow_kernels.ops.linear import (
    gate_up_silu,
    gate_up_silu_reference,
    linear,
    linear_reference,
    room_for,
)
from jetflow_kernels.ops.linear_choice import Products
from jetflow_kernels.ops.linear_plan import Config, configs_for
from jetflow_kernels.ops.norms import add_rms_norm, rms_norm
from jetflow_kernels.ops.streamed.launch import refused
from jetflow_kernels.ops.streamed.variants import streamed_for

_REPLAYS = 20
_CHAINED = 2
"""Configurations of either end of the list that are tried in layers."""
_TORCH_STEPS = 8.0
"""Tolerances by which torch's product may be off, which may be what is chosen."""


def values(
    device: str, *, dtype: torch.dtype, rows: int, outs: int, ins: int, gated: bool
) -> tuple[int, float]:
    """Every configuration for so many rows: values, the same bits again, a row of NaN.

    Kernels are placed early, as an engine places them; with a bias where nothing is aligned.

    Returns:
        How many held, and the largest error in tolerances.
    """
    weight = torch.randn(outs * (2 if gated else 1), ins, device=device).to(dtype)
    biased = not gated and ins % 8 != 0
    bias = torch.randn(outs, device=device).to(dtype) if biased else None
    wide = torch.full((rows, ins + 16), torch.nan, dtype=dtype, device=device)
    x = wide[:, 8 : 8 + ins]
    x.copy_(torch.randn(rows, ins, device=device))
    if gated:
        wanted = gate_up_silu_reference(x, weight)
        allowed = tolerances.of_gated(x, weight, wanted)
    else:
        wanted = linear_reference(x, weight, bias)
        allowed = tolerances.of_product(x, weight, wanted)
    arrived = torch.zeros(room_for([(rows, outs)]), dtype=torch.int32, device=device)
    worst = 0.0
    configs = _all_configs(x, weight, wanted, gated=gated)
    for config in configs:
        found = _run(x, weight, bias, config, arrived, gated=gated)
        worst = max(worst, tolerances.largest(found, wanted, allowed))
        if not worst <= 1:
            raise RuntimeError(f"{config}: off by {worst:.3g} tolerances")
        poison_memory(device)
        again = _run(x, weight, bias, config, arrived, gated=gated)
        expect_equal(f"{config}, again", again, found)
        broken = x.clone()
        broken[rows // 2] = torch.nan
        got = _run(broken, weight, bias, config, arrived, gated=gated)
        if not got[rows // 2].isnan().all():
            raise RuntimeError(f"{config}: a row of NaN is not NaN")
        others = torch.arange(rows, device=device) != rows // 2
        expect_equal(f"{config}, beside NaN", got[others], found[others])
        if arrived.any():
            raise RuntimeError(f"{config}: counters are not zero afterwards")
    return 4 * len(configs), worst


def layers_in_one_graph(
    device: str, *, dtype: torch.dtype, rows: int, hidden: int, inner: int, layers: int
) -> tuple[int, float]:
    """Norms and products of some layers, each placed while the one ahead ends, replayed.

    The bits are those of the same kernels that wait for each other.
    """
    size = hidden**-0.5
    gates = [size * torch.randn(2 * inner, hidden, device=device) for _ in range(layers)]
    downs = [size * torch.randn(hidden, inner, device=device) for _ in range(layers)]
    gates, downs = ([each.to(dtype) for each in some] for some in (gates, downs))
    norm = torch.ones(hidden, device=device, dtype=dtype)
    x = torch.randn(rows, hidden, device=device).to(dtype)
    arrived = torch.zeros(
        room_for([(rows, hidden), (rows, inner)]), dtype=torch.int32, device=device
    )
    held = 0
    pairs = zip(
        _chained(x, gates[0], x.new_empty(rows, inner), gated=True),
        _chained(x.new_empty(rows, inner), downs[0], x, gated=False),
        strict=True,
    )
    for gated, plain in pairs:

        def run(overlapped: bool, gated: Config = gated, plain: Config = plain) -> Tensor:
            # By a kernel: only one that is ahead can let the next one in early.
            state = x * 1
            normed = rms_norm(state, norm, 1e-6, overlapped=overlapped)
            for gate, down in zip(gates, downs, strict=True):
                opened = gate_up_silu(
                    normed, gate, config=gated, arrived=arrived, overlapped=overlapped
                )
                change = linear(opened, down, config=plain, arrived=arrived, overlapped=overlapped)
                normed = add_rms_norm(state, change, norm, 1e-6, state, overlapped=overlapped)
            return state

        held += _replayed(device, x, run)
    return held, 0.0


def the_measured_choice(device: str, *, dtype: torch.dtype, rows: int) -> tuple[int, float]:
    """Whatever is chosen for a product, it computes that product."""
    weights = [0.03 * torch.randn(768, 1024, device=device).to(dtype) for _ in range(3)]
    # Others use the device at this time: what is measured here is not kept.
    with TemporaryDirectory() as folder:
        steps = LayerSteps(Products(Path(folder)))
        steps.prepare([rows], weights, weights)
    if device == "cuda" and dtype != torch.float32 and len(steps.products()) < 2:
        raise RuntimeError("nothing was measured")
    x = torch.randn(rows, 1024, device=device).to(dtype)
    errors = []
    for weight in weights:
        wanted = linear_reference(x, weight)
        allowed = _TORCH_STEPS * tolerances.of_product(x, weight, wanted)
        errors.append(tolerances.largest(steps.linear(x, weight), wanted, allowed))
        wanted = gate_up_silu_reference(x, weight)
        allowed = tolerances.of_gated(x, weight, wanted)
        errors.append(tolerances.largest(steps.gate_up_silu(x, weight), wanted, allowed))
    if not max(errors) <= 1:
        raise RuntimeError(f"off by {max(errors):.3g} tolerances")
    return len(errors), max(errors)


def _all_configs(x: Tensor, weight: Tensor, out: Tensor, *, gated: bool) -> list[Config]:
    """All that takes these tensors; streams run on cards alone."""
    streams = [
        each
        for each in streamed_for(len(x), x.dtype)
        if refused(x, weight, out, each, gated=gated) is None
    ]
    return [*configs_for(len(x), x.dtype, gated=gated), *streams]


def _chained(x: Tensor, weight: Tensor, out: Tensor, *, gated: bool) -> list[Config]:
    """Some of them: the first ones, and the last two, which are streams where there are any."""
    found = _all_configs(x, weight, out, gated=gated)
    return [*found[:_CHAINED], *found[-_CHAINED:]]


def _replayed(device: str, x: Tensor, run: Callable[[bool], Tensor]) -> int:
    if device != "cuda":
        expect_equal("again", run(False), run(False))
        return 1
    run(True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(True)
    for number in range(_REPLAYS):
        x.copy_(torch.randn_like(x))
        wanted = run(False)
        graph.replay()
        expect_equal(f"replay {number}", found, wanted)
    return _REPLAYS


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, config: Config, arrived: Tensor, *,
    gated: bool,
) -> Tensor:  # fmt: skip
    overlapped = x.is_cuda
    if gated:
        return gate_up_silu(x, weight, config=config, arrived=arrived, overlapped=overlapped)
    return linear(x, weight, bias, config=config, arrived=arrived, overlapped=overlapped)


def tasks(*, small: bool) -> Iterator[Task]:
    """The lists; ``small`` for Triton's interpreter."""

    def task(
        name: str, dtype: torch.dtype, case: str, run: partial[tuple[int, float]], *,
        captures: bool = True,
    ) -> Task:  # fmt: skip
        return Task(
            list=name, backend="triton", dtype=names(dtype), case=case, run=run, captures=captures
        )

    hidden, inner, layers = (24, 40, 2) if small else (2048, 4096, 12)
    kind = torch.float16 if small else torch.bfloat16
    for rows in (18,) if small else (1, 4, 16, 64, 128, 256):
        yield task("products in one graph", kind, f"{rows} rows, {layers} layers", partial(
            layers_in_one_graph, dtype=kind, rows=rows, hidden=hidden, inner=inner, layers=layers
        ))  # fmt: skip
    for rows in (5,) if small else (1, 64):
        dtype = torch.float32 if small else torch.bfloat16
        yield task(
            "products that were chosen", dtype, f"{rows} rows",
            partial(the_measured_choice, dtype=dtype, rows=rows),
        )  # fmt: skip
    most = (1, 2, 3, 7, 16, 24, 64, 100, 128, 160, 256)
    counts = {torch.bfloat16: most, torch.float16: (2, 64), torch.float32: (3, 18)}
    shapes: tuple[tuple[int, int], ...] = ((960, 576), (4096, 4096), (576, 1536), (1000, 1001))
    if small:
        counts, shapes = {torch.float16: (18,)}, ((9, 40),)
    for dtype, of_type in counts.items():
        for rows, (outs, ins), gated in product(of_type, shapes, (False, True)):
            if ins % 8 and rows not in (2, 3, 64):
                continue
            told = f"{rows} rows, {outs}x{ins}{', gated' if gated else ''}"
            yield task("products", dtype, told, partial(
                values, dtype=dtype, rows=rows, outs=outs, ins=ins, gated=gated
            ), captures=False)  # fmt: skip
