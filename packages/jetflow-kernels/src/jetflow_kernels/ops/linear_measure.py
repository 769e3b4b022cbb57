"""Times torch's product and ours on matrices that are in no cache, all of them in turns."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from jetflow_kernels import timing
from jetflow_kernels.ops.gate import silu_mul
from jetflow_kernels.ops.linear import gate_up_silu, linear
from jetflow_kernels.ops.linear_launch import launch_few, launch_shares
from jetflow_kernels.ops.linear_plan import Config, Few
from jetflow_kernels.ops.norms import MOST_WIDTH, rms_norm
from jetflow_kernels.ops.streamed.variants import Streamed, cubin, variant_of
from jetflow_kernels.round.checks import can_overlap

TORCH = "torch"
"""Name of torch's product, with our gate behind it if it is gated."""
_UNCACHED = 256 * 2**20
"""Bytes of matrices that take turns: several times the cache of any card."""
_MOST_MATRICES = 256
_ROUNDINGS = {False: 3.0, True: 10.0}
"""Roundings by which two right results may be apart, by whether they are gated."""

Call = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Timed:
    """What came of one product."""

    us: dict[str, float] = field(default_factory=dict)
    """Median microseconds of each that was right, with the norm ahead of it."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why each of the others was not timed."""


def measure(
    wanted: Sequence[tuple[int, Sequence[Config]]],
    weights: Sequence[Tensor],
    *,
    gated: bool,
    arrived: Tensor,
) -> list[Timed]:
    """Times products of some numbers of rows with matrices of one shape; waits for the device.

    A graph holds a product with each matrix, each behind a norm of its rows, as in a pass: what a
    kernel gains by beginning early, and what torch's takes to begin, are part of it. Rows wider
    than a norm takes are multiplied as they are.

    Args:
        wanted: numbers of rows, each with what is timed beside torch.
        weights: [out, in] each, on a CUDA device of capability 9.0 or later; copied where they are
            so few that they would stay in the cache.
        gated: whether results are gated.
        arrived: counters, as ``linear`` takes them.

    Returns:
        One for each number of rows.
    """
    matrices = uncached(weights)
    compile_all(wanted, matrices[0], gated=gated, arrived=arrived)
    generator = torch.Generator(matrices[0].device).manual_seed(0)
    found = []
    for rows, configs in wanted:
        x = torch.randn(
            rows, matrices[0].shape[1], generator=generator, device=matrices[0].device
        ).to(matrices[0].dtype)
        found.append(_measure_one(x, matrices, configs, gated=gated, arrived=arrived))
    return found


def uncached(weights: Sequence[Tensor]) -> list[Tensor]:
    """Matrices of one shape that no cache holds together: some of those given, or with copies."""
    size = weights[0].numel() * weights[0].element_size()
    count = min(max(1, -(-_UNCACHED // size)), _MOST_MATRICES)
    some = list(weights[:count])
    return some + [some[at % len(some)].clone() for at in range(count - len(some))]


def compile_all(
    wanted: Sequence[tuple[int, Sequence[Config]]],
    weight: Tensor,
    *,
    gated: bool,
    arrived: Tensor,
) -> None:
    """Compiles what will be timed, in threads; what fails fails again where it is called."""
    import triton

    outs = weight.shape[0] // 2 if gated else weight.shape[0]
    with (
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
        triton.AsyncCompileMode(pool, ignore_errors=True),
    ):
        for rows, configs in wanted:
            x = weight.new_empty(rows, weight.shape[1])
            out = weight.new_empty(rows, outs)
            told = {"overlapped": True, "gated": gated, "compile_only": True}
            for config in configs:
                if isinstance(config, Streamed):
                    kind = variant_of(config, weight.dtype, gated=gated)
                    pool.submit(cubin, kind)
                elif isinstance(config, Few):
                    launch_few(x, weight, None, out, config, **told)
                else:
                    launch_shares(x, weight, None, out, config, arrived, **told)


def by_torch(x: Tensor, weight: Tensor, *, gated: bool) -> Tensor:
    """Torch's product, and our gate behind it."""
    product = F.linear(x, weight)
    return silu_mul(product, overlapped=can_overlap(x)) if gated else product


def in_a_pass(
    multiply: Callable[[Tensor, Tensor], Tensor], x: Tensor, matrices: Sequence[Tensor]
) -> list[Call]:
    """Products with each matrix, each behind the kernel that writes its rows, a norm.

    Args:
        multiply: of rows and a matrix.
        x: [T, in]; too wide for a norm, it is multiplied as it is.
        matrices: [out, in] each.
    """
    if x.shape[1] > MOST_WIDTH:
        return [partial(multiply, x, matrix) for matrix in matrices]
    ones = x.new_ones(x.shape[1])

    def behind_norm(matrix: Tensor) -> Tensor:
        return multiply(rms_norm(x, ones, 1e-6, overlapped=can_overlap(x)), matrix)

    return [partial(behind_norm, matrix) for matrix in matrices]


def by_config(x: Tensor, weight: Tensor, config: Config, *, gated: bool, arrived: Tensor) -> Tensor:
    """Our product, begun while the kernel ahead ends."""
    run = gate_up_silu if gated else linear
    return run(x, weight, config=config, arrived=arrived, overlapped=True)


def apart(found: Tensor, wanted: Tensor, *, gated: bool) -> str | None:
    """How two results differ by more than their roundings; None: they do not."""
    step = torch.finfo(found.dtype).eps * _ROUNDINGS[gated]
    size = wanted.float().pow(2).mean().sqrt()
    allowed = step * (wanted.float().abs() + size)
    off = (found.float() - wanted.float()).abs()
    # Written so that NaN is apart.
    if bool((off <= allowed).all()):
        return None
    return f"off by up to {float((off / allowed).nan_to_num(nan=torch.inf).max()):.3g} tolerances"


def _measure_one(
    x: Tensor, matrices: Sequence[Tensor], configs: Sequence[Config], *, gated: bool,
    arrived: Tensor,
) -> Timed:  # fmt: skip
    replays, refused = {}, {}
    wanted = by_torch(x, matrices[0], gated=gated)
    replays[TORCH] = timing.capture(in_a_pass(partial(by_torch, gated=gated), x, matrices))
    for config in configs:
        call = partial(by_config, config=config, gated=gated, arrived=arrived)
        # Whatever a kernel that cannot be compiled or started raises, the others go on.
        try:
            reason = apart(call(x, matrices[0]), wanted, gated=gated)
            if reason is None:
                replays[str(config)] = timing.capture(in_a_pass(call, x, matrices))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"[:300]
        if reason is not None:
            refused[str(config)] = reason
            arrived.zero_()
    spreads = timing.in_turns(list(replays.values()), len(matrices))
    us = {name: spread.median_us for name, spread in zip(replays, spreads, strict=True)}
    return Timed(us, refused)
