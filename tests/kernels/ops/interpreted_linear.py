"""Interpreted, or on a CUDA device: products equal their references, whoever comes last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jetflow_kernels import timing
from jetflow_kernels.check import products
from jetflow_kernels.check.tasks import run_one
from jetflow_kernels.ops import (
    LayerSteps,
    gate_up_silu,
    gate_up_silu_reference,
    linear,
    linear_bench,
    linear_measure,
    linear_reference,
    silu_mul,
)
from jetflow_kernels.ops.linear import room_for
from jetflow_kernels.ops.linear_measure import apart
from jetflow_kernels.ops.linear_plan import Config, Few, Shares, all_configs, configs_for
from jetflow_kernels.ops.streamed.variants import streamed_for
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device", "rounding_as_on_a_device")

TYPES = (torch.float32, torch.bfloat16, torch.float16)
ROWS = (1, 2, 7, 16, 64, 100, 256)
SOME_PROGRAMS = 9
"""Enough to share tiles in every way; each one takes the interpreter a moment."""
a_few = settings(
    max_examples=10, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


def noise(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), device="cpu")
    return made.to(torch.get_default_device(), dtype)


def eighths(seed: int, *shape: int, dtype: torch.dtype) -> Tensor:
    """Small eighths, the sums of whose products are exact in any order."""
    generator = torch.Generator().manual_seed(seed)
    made = torch.randint(-3, 4, shape, generator=generator, device="cpu") / 8
    return made.to(torch.get_default_device(), dtype)


def between(values: Tensor, gap: int) -> Tensor:
    """The same rows as a view, with NaN on either side of each."""
    rows, width = values.shape
    wide = torch.full((rows + 1, width + 2 * gap), torch.nan, dtype=values.dtype)
    wide[:rows, gap : gap + width] = values
    return wide[:rows, gap : gap + width]


def counters(rows: int, outs: int) -> Tensor:
    return torch.zeros(room_for([(rows, outs)]), dtype=torch.int32)


def tensor_cores(rows: int, dtype: torch.dtype, which: int, *, gated: bool) -> Shares:
    """One of those for so many rows, with few programs."""
    found = [each for each in configs_for(rows, dtype, gated=gated) if isinstance(each, Shares)]
    config = found[which % len(found)]
    return replace(config, programs=min(config.programs, SOME_PROGRAMS))


def assert_close(found: Tensor, wanted: Tensor, ins: int, roundings: float = 1.0) -> None:
    """Apart by roundings of the type and by what another order of a sum gives."""
    step = torch.finfo(found.dtype).eps * roundings
    order = 1e-6 * (ins**0.5 + wanted.nan_to_num().abs().max().item())
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=max(step, 2e-6), atol=order, equal_nan=True)


@given(
    seed=st.integers(0, 2**32), rows=st.sampled_from(ROWS),
    outs=st.sampled_from([1, 63, 64, 70, 130]), ins=st.sampled_from([1, 8, 33, 72, 136]),
    dtype=st.sampled_from(TYPES), biased=st.booleans(), gap=st.sampled_from([0, 3, 8]),
    which=st.integers(0, 9),
)  # fmt: skip
@a_few
def test_products(
    seed: int, rows: int, outs: int, ins: int, dtype: torch.dtype, biased: bool, gap: int,
    which: int,
) -> None:  # fmt: skip
    x, weight = noise(seed, rows, ins, dtype=dtype), noise(seed + 1, outs, ins, dtype=dtype)
    bias = noise(seed + 2, outs, dtype=dtype) if biased else None
    config, arrived = tensor_cores(rows, dtype, which, gated=False), counters(rows, outs)
    out = between(torch.zeros(rows, outs, dtype=dtype), gap)
    found = linear(between(x, gap), weight, bias, out=out, config=config, arrived=arrived)
    assert found is out
    assert not arrived.any()
    assert_close(found, linear_reference(x, weight, bias), ins)
    outside = out._base
    assert outside is not None
    assert int(outside.isnan().sum()) == outside.numel() - rows * outs


@given(
    seed=st.integers(0, 2**32), rows=st.sampled_from(ROWS), width=st.sampled_from([1, 63, 65, 130]),
    ins=st.sampled_from([8, 33, 72]), dtype=st.sampled_from(TYPES), which=st.integers(0, 9),
)  # fmt: skip
@a_few
def test_gated_products(
    seed: int, rows: int, width: int, ins: int, dtype: torch.dtype, which: int
) -> None:
    x, weight = (
        eighths(seed, rows, ins, dtype=dtype),
        eighths(seed + 1, 2 * width, ins, dtype=dtype),
    )
    config, arrived = tensor_cores(rows, dtype, which, gated=True), counters(rows, width)
    found = gate_up_silu(x, weight, config=config, arrived=arrived)
    assert not arrived.any()
    # Their sums are exact, so every rounding is where the two operations round.
    assert torch.equal(found, silu_mul(linear_reference(x, weight)))
    assert_close(found, gate_up_silu_reference(x, weight), ins, roundings=2.5)


@given(
    seed=st.integers(0, 2**32), rows=st.integers(1, 4), outs=st.sampled_from([1, 4, 7]),
    ins=st.sampled_from([1, 33, 64, 150]), dtype=st.sampled_from(TYPES),
    gap=st.sampled_from([0, 3]),
)  # fmt: skip
@a_few
def test_products_by_threads(
    seed: int, rows: int, outs: int, ins: int, dtype: torch.dtype, gap: int
) -> None:
    config = Few(columns=4, depth=64, warps=2)
    x, weight = eighths(seed, rows, ins, dtype=dtype), eighths(seed + 1, 2 * outs, ins, dtype=dtype)
    bias, out = noise(seed, 2 * outs, dtype=dtype), torch.empty(rows, 2 * outs, dtype=dtype)
    found = linear(between(x, gap), weight, bias, out=out, config=config)
    assert torch.equal(found, linear_reference(x, weight, bias))
    gated = gate_up_silu(between(x, gap), weight, config=config)
    assert torch.equal(gated, silu_mul(linear_reference(x, weight)))


SHIPPED = [
    (config, gated)
    for gated in (False, True)
    for config in all_configs(torch.float16, gated=gated)
]  # fmt: skip


@pytest.mark.parametrize(("config", "gated"), SHIPPED, ids=str)
def test_every_configuration(config: Config, gated: bool) -> None:
    few = isinstance(config, Few)
    # Threads take the interpreter longer.
    rows, outs = (3, 6) if few else (config.rows - 3, 260)
    run, reference = (gate_up_silu, gate_up_silu_reference) if gated else (linear, linear_reference)
    x, weight = (noise(at, size, 200, dtype=torch.float16) for at, size in ((0, rows), (1, outs)))
    some = config if few else replace(config, programs=min(config.programs, SOME_PROGRAMS))
    found = run(x, weight, config=some)
    assert_close(found, reference(x, weight), 200, roundings=40.0 if gated else 1.0)


@contextmanager
def programs_in_order(order: Sequence[int]) -> Iterator[None]:
    """Programs run one after the other in the interpreter; here in an order that is chosen."""
    from triton.runtime import interpreter

    builder, seen = interpreter.interpreter_builder, []
    placed = builder.set_grid_idx

    def place(x: int, y: int, z: int) -> None:
        seen.append(order[x])
        placed(order[x], y, z)

    builder.set_grid_idx = place
    try:
        yield
    finally:
        builder.set_grid_idx = placed
    assert seen == list(order)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("programs", [3, 20])
def test_whoever_comes_last_the_bits_are_the_same(gated: bool, programs: int) -> None:
    run: Callable[..., Tensor] = gate_up_silu if gated else linear
    outs = 280 if gated else 140
    x, weight = noise(0, 18, 100, dtype=torch.float32), noise(1, outs, 100, dtype=torch.float32)
    config = Shares(columns=64, rows=16, depth=32, stages=2, warps=4, programs=programs)
    wanted = run(x, weight, config=config)
    arrived = counters(18, 140)
    if x.is_cuda:
        for _ in range(20):
            assert torch.equal(run(x, weight, config=config, arrived=arrived), wanted)
        assert not arrived.any()
        return
    backwards = list(range(programs))[::-1]
    mixed = list(range(programs))
    Random(programs).shuffle(mixed)
    for order in (backwards, mixed):
        with programs_in_order(order):
            found = run(x, weight, config=config, arrived=arrived)
        assert torch.equal(found, wanted)
        assert not arrived.any()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [4, 18])
def test_a_row_feels_no_other_row(rows: int, dtype: torch.dtype) -> None:
    x, weight = noise(0, rows, 90, dtype=dtype), noise(1, 9, 90, dtype=dtype)
    weight[0] = 0.5
    clean = x.clone()
    x[0, 3], x[2, 5] = torch.nan, torch.inf
    for config in configs_for(rows, dtype, gated=False):
        broken, good = (linear(each, weight, config=config) for each in (x, clean))
        assert broken[0].isnan().all()
        assert broken[2, 0] == torch.inf
        kept = [row for row in range(rows) if row not in (0, 2)]
        assert torch.equal(broken[kept], good[kept])
        assert good.isfinite().all()


def test_the_lists_of_a_device_hold_small() -> None:
    device = "cuda" if torch.empty(0).is_cuda else "cpu"
    tasks = list(products.tasks(small=True))
    assert {task.list for task in tasks} == {task.list for task in products.tasks(small=False)}
    for task in tasks:
        outcome = run_one(task, device)
        assert (outcome.failed, outcome.checks > 0) == (None, True), task.case


def test_the_bench_measures_what_it_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Everything but the times: a device that always takes as long, and one that is wrong."""
    spreads = [timing.Spread(median_us=us, p10_us=us, p90_us=us) for us in (5.0, 4.0, 6.0)]

    def in_turns(replays: Sequence[object], calls: int) -> list[timing.Spread]:
        return [spreads[min(at, 2)] for at in range(len(replays))]

    monkeypatch.setattr(timing, "in_turns", in_turns)
    monkeypatch.setattr(timing, "capture", lambda calls: [call() for call in calls])
    monkeypatch.setattr(linear_measure, "compile_all", lambda *args, **named: None)
    monkeypatch.setattr(linear_measure, "_MOST_MATRICES", 2)
    monkeypatch.setattr(linear_bench, "_DEVICE", str(torch.empty(0).device))
    monkeypatch.setattr(linear_bench, "_LAYERS", 1)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = linear_bench.Model(name="tiny", hidden=16, qkv=24, inner=32, vocabulary=40)
    results: list[dict[str, object]] = []
    linear_bench.run([18], [model], results.append)
    *found, layers = results
    assert [each["product"] for each in found] == list(model.products())
    configs = [str(each) for each in configs_for(18, torch.bfloat16, gated=False)]
    assert found[0]["runs"] == configs[0]
    assert set(found[0]["us"]) == {"torch", *configs}
    # Those in CUDA C++ run on no CPU.
    streams = {str(each) for each in streamed_for(18, torch.bfloat16)}
    for each in found:
        assert set(each["wrong"]) == set(each["refused"]) == streams
        assert all("need a CUDA device" in why for why in each["refused"].values())
    assert set(layers["us_per_layer"]) == {"torch", "chosen", "chosen, placed early"}
    assert all(linear_bench.line(each) for each in results)
    json.dumps(results)
    wrong = apart(torch.ones(2, 2).half(), torch.zeros(2, 2).half(), gated=False)
    assert "WRONG it: off" in linear_bench.line({**found[0], "wrong": {"it": wrong}})


def test_zero_rows_and_one_row_of_any_stride() -> None:
    weight = noise(0, 6, 16, dtype=torch.float16)
    assert linear(torch.empty(0, 16, dtype=torch.float16), weight).shape == (0, 6)
    assert gate_up_silu(torch.empty(0, 16, dtype=torch.float16), weight).shape == (0, 3)
    x = noise(1, 1, 16, dtype=torch.float16)
    odd = x.as_strided((1, 16), (1, 1))
    for config in configs_for(1, torch.float16, gated=False):
        assert_close(linear(odd, weight, config=config), linear_reference(x, weight), 16)


def test_without_preparation_products_are_torchs() -> None:
    steps = LayerSteps()
    x, weight = noise(0, 5, 24, dtype=torch.float32), noise(1, 12, 24, dtype=torch.float32)
    bias = noise(2, 12, dtype=torch.float32)
    # Float32 is passed over, so this measures nothing anywhere.
    steps.prepare([5], [weight], [weight])
    assert steps.products() == []
    wanted = torch.nn.functional.linear(x, weight, bias)
    assert torch.equal(steps.linear(x, weight, bias), wanted)
    assert torch.equal(steps.gate_up_silu(x, weight), silu_mul(steps.linear(x, weight)))
