"""Interpreted, or on a CUDA device: norms and gates equal their references, and core's torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jetflow_core.stacks import TorchOps
from jetflow_kernels.ops import (
    add_rms_norm,
    add_rms_norm_reference,
    layer_steps,
    rms_norm,
    rms_norm_reference,
    round_steps,
    silu_mul,
    silu_mul_reference,
)
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device", "rounding_as_on_a_device")

TYPES = (torch.float32, torch.bfloat16, torch.float16)
CORE = TorchOps()
a_few = settings(
    max_examples=12, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
seeds = st.integers(0, 2**32)


def noise(seed: int, *shape: int, dtype: torch.dtype = torch.float32, size: float = 1.0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), device="cpu") * size
    return made.to(torch.get_default_device(), dtype)


def between(values: Tensor) -> Tensor:
    """The same rows as a view, with NaN on either side of each."""
    rows, width = values.shape
    wide = torch.full((rows + 1, width + 5), torch.nan, dtype=values.dtype)
    wide[:rows, 3 : 3 + width] = values
    return wide[:rows, 3 : 3 + width]


def assert_close(found: Tensor, wanted: Tensor) -> None:
    """Apart by one rounding of the type, or in float32 by what another order of a sum gives."""
    step = torch.finfo(found.dtype).eps
    rtol = 1e-6 if found.dtype == torch.float32 else step
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=1e-7, equal_nan=True)


@given(
    seed=seeds, rows=st.integers(1, 4), width=st.sampled_from([1, 3, 16, 33, 100, 576]),
    dtype=st.sampled_from(TYPES), size=st.sampled_from([1e-4, 1.0, 90.0]),
    eps=st.sampled_from([0.0, 1e-6, 1e-5]), gaps=st.booleans(),
)  # fmt: skip
@a_few
def test_norms(
    seed: int, rows: int, width: int, dtype: torch.dtype, size: float, eps: float, gaps: bool
) -> None:
    x, change = (noise(seed + i, rows, width, dtype=dtype, size=size) for i in (0, 1))
    weight = noise(seed + 2, width, dtype=dtype) + 1
    wanted = rms_norm_reference(x, weight, eps)
    total = torch.empty_like(x)
    wanted_sum = torch.empty_like(x)
    wanted_normed = add_rms_norm_reference(x, change, weight, eps, wanted_sum)
    assert_close(wanted, CORE.rms_norm(x, weight, eps))
    assert torch.equal(wanted_sum, x + change)
    place = (lambda tensor: between(tensor)) if gaps else (lambda tensor: tensor)
    assert_close(rms_norm(place(x), weight, eps), wanted)
    total = place(torch.empty_like(x))
    normed = layer_steps.add_rms_norm(place(x), place(change), weight, eps, total)
    assert torch.equal(total, wanted_sum)
    assert_close(normed, wanted_normed)


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_and_norms_over_what_they_read(dtype: torch.dtype) -> None:
    x, change = noise(0, 3, 70, dtype=dtype), noise(1, 3, 70, dtype=dtype)
    weight, kept = noise(2, 70, dtype=dtype), torch.empty(3, 70, dtype=dtype)
    normed = add_rms_norm(x, change, weight, 1e-6, kept)
    over_x, over_change = x.clone(), change.clone()
    assert torch.equal(add_rms_norm(over_x, change, weight, 1e-6, over_x), normed)
    assert torch.equal(over_x, kept)
    found = add_rms_norm(x, over_change, weight, 1e-6, torch.empty_like(x), out=over_change)
    assert found is over_change
    assert torch.equal(found, normed)
    alone = rms_norm(kept, weight, 1e-6)
    assert torch.equal(alone, normed)
    assert rms_norm(kept, weight, 1e-6, out=kept) is kept
    assert torch.equal(kept, normed)


def test_what_lies_around_the_rows_stays() -> None:
    x = between(noise(0, 3, 9))
    whole = x._base
    assert whole is not None
    weight = torch.ones(9)
    add_rms_norm(x, between(noise(1, 3, 9)), weight, 1e-6, x, out=x)
    assert int(whole.isnan().sum()) == whole.numel() - 27
    gates = between(noise(2, 3, 12))
    whole = gates._base
    assert whole is not None
    silu_mul(gates, out=gates[:, :6])
    assert int(whole.isnan().sum()) == whole.numel() - 36


def test_a_row_feels_no_other_row() -> None:
    x, change = noise(0, 4, 100), noise(1, 4, 100)
    x[0, 3], change[2, 5] = torch.nan, torch.nan
    weight, total = torch.ones(100), torch.empty(4, 100)
    normed = add_rms_norm(x, change, weight, 1e-6, total)
    assert normed[[0, 2]].isnan().all()
    for row in (1, 3):
        alone, one = x[row : row + 1], change[row : row + 1]
        again = add_rms_norm(alone, one, weight, 1e-6, torch.empty_like(alone))
        assert torch.equal(again[0], normed[row])
        assert normed[row].isfinite().all()


@given(
    seed=seeds, rows=st.integers(1, 4), width=st.sampled_from([1, 5, 16, 100, 1536, 2049]),
    dtype=st.sampled_from(TYPES), size=st.sampled_from([1e-3, 1.0, 20.0]), gaps=st.booleans(),
)  # fmt: skip
@a_few
def test_gates(
    seed: int, rows: int, width: int, dtype: torch.dtype, size: float, gaps: bool
) -> None:
    gate_up = noise(seed, rows, 2 * width, dtype=dtype, size=size)
    wanted = silu_mul_reference(gate_up)
    assert torch.equal(wanted, CORE.silu_mul(gate_up))
    found = layer_steps.silu_mul(between(gate_up) if gaps else gate_up)
    # The SiLU may round to its other neighbour, and the product once more.
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(found, wanted, rtol=2.5 * step + 1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_gates_far_out() -> None:
    gate = torch.tensor([0.0, -0.0, 88.0, -88.0, 300.0, -300.0, torch.inf, -torch.inf, torch.nan])
    gate_up = torch.cat((gate, torch.full_like(gate, 0.5)))[None]
    torch.testing.assert_close(
        silu_mul(gate_up), silu_mul_reference(gate_up), rtol=1e-5, atol=1e-30, equal_nan=True
    )


@pytest.mark.parametrize("half", [0, 1])
def test_gates_over_what_they_read(half: int) -> None:
    gate_up = noise(0, 3, 2 * 2500)
    wanted = silu_mul(gate_up)
    place = gate_up.chunk(2, dim=1)[half]
    assert silu_mul(gate_up, out=place) is place
    assert torch.equal(place, wanted)


def test_no_rows() -> None:
    empty, weight = torch.empty(0, 8), torch.ones(8)
    assert rms_norm(empty, weight, 1e-6).shape == (0, 8)
    assert add_rms_norm(empty, empty, weight, 1e-6, empty).shape == (0, 8)
    assert silu_mul(empty).shape == (0, 4)


def test_products_are_torchs() -> None:
    x, weight, bias = noise(0, 3, 5), noise(1, 4, 5), noise(2, 4)
    assert torch.equal(layer_steps.linear(x, weight, bias), CORE.linear(x, weight, bias))
    assert torch.equal(layer_steps.linear(x, weight), CORE.linear(x, weight))


def test_the_cache_write_is_that_of_a_round() -> None:
    qkv, positions, slots = noise(0, 3, 4 * 16), torch.tensor([2, 0, 5]), torch.tensor([1, -1, 6])
    cos, sin = noise(1, 8, 8), noise(2, 8, 8)
    found = []
    for steps in (layer_steps, round_steps):
        pools = [torch.zeros(2, 4, 1, 16) for _ in range(2)]
        queries = steps.norm_rope_kv_write(qkv, positions, cos, sin, slots, *pools)
        found.append((queries, *pools))
    assert all(torch.equal(mine, other) for mine, other in zip(*found, strict=True))
    assert found[0][1].any() and found[0][0].shape == (3, 2, 16)
