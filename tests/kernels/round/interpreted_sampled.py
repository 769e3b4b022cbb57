"""Interpreted, or on a CUDA device: sampled picks equal the reference's, alone and in a batch."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from jetflow_kernels.round import pick_argmax, pick_sampled, pick_sampled_reference
from jetflow_kernels.round.noise import gumbel_noise
from jetflow_kernels.round.sampled import launch
from jetflow_kernels.round.sampled_kernel import gumbel_of, gumbel_tile
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device")

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


def draws(rows: int, vocabulary: int, dtype: torch.dtype) -> Arguments:
    """Logits with ties and rows of all temperatures, seeds and places."""
    generator, device = torch.Generator().manual_seed(rows * vocabulary), torch.get_default_device()
    logits = (torch.randn(rows, vocabulary, generator=generator, device="cpu") * 12).round() / 4
    logits[0, 1::3] = -torch.inf
    temperatures = torch.tensor([1.0, 0.0, 0.25, 0.7, 2.5, 1e-4]).repeat(rows)[:rows]
    seeds = torch.tensor([0, 7, -1, 2**63 - 1, -(2**63)]).repeat(rows)[:rows]
    positions = torch.randint(0, 40_000, (rows,), generator=generator, device="cpu")
    return logits.to(device, dtype), temperatures, seeds, positions.to(device)


def assert_equal_where_it_can_be(found: Tensor, arguments: Arguments) -> None:
    """Equal picks, wherever the two greatest values are not as close as the stated rounding."""
    logits, temperatures, seeds, positions = arguments
    picks, _ = pick_sampled_reference(*arguments)
    noise = gumbel_noise(seeds, positions.long() + 1, logits.shape[1])
    values = logits.double() + temperatures.double()[:, None] * noise
    best = values.topk(min(2, values.shape[1]), dim=1)
    error = 4e-7 * (1 + noise.gather(1, best.indices).abs()) * temperatures[:, None]
    clear = (temperatures == 0) | (best.values[:, 0] - best.values[:, -1] > error.sum(1))
    if logits.shape[1] > 1:
        assert clear.double().mean() > 0.9
        assert torch.equal(found[clear], picks[clear])
    else:
        assert found.eq(0).all()


@pytest.mark.parametrize(
    ("rows", "vocabulary", "dtype"),
    [
        (6, 1, torch.float32),
        (30, 37, torch.float32),
        (12, 515, torch.float16),
        (6, 4097, torch.float32),
        (7, 9000, torch.bfloat16),
    ],
)
def test_picks(rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    arguments = draws(rows, vocabulary, dtype)
    picks, broken = pick_sampled(*arguments)
    assert picks.dtype == torch.int32
    assert not broken.any()
    assert_equal_where_it_can_be(picks, arguments)
    greedy = arguments[1] == 0
    assert torch.equal(picks[greedy], pick_argmax(arguments[0])[0][greedy])
    if vocabulary > 500:
        assert not torch.equal(picks, pick_argmax(arguments[0])[0])


def test_how_the_vocabulary_is_split_changes_nothing() -> None:
    arguments = draws(4, 300, torch.float32)
    found = []
    for part in (32, 128, 512):
        picks, broken = torch.empty(4, dtype=torch.int32), torch.empty(4, dtype=torch.bool)
        launch(*arguments, picks, broken, part=part)
        found.append(picks)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_row_does_not_depend_on_its_index_or_its_neighbours() -> None:
    arguments = draws(9, 100, torch.bfloat16)
    picks, _ = pick_sampled(*arguments)
    order = torch.tensor([4, 0, 8, 3])
    alone, _ = pick_sampled(*(tensor[order] for tensor in arguments))
    assert torch.equal(alone, picks[order])
    # Types of positions and gaps between rows are no part of the noise either.
    wide = torch.zeros(9, 133, dtype=torch.bfloat16)
    wide[:, :100] = arguments[0]
    apart, _ = pick_sampled(wide[:, :100], *arguments[1:3], arguments[3].int())
    assert torch.equal(apart, picks)


def test_rows_that_are_broken_say_so_and_spare_the_others() -> None:
    logits, _, seeds, positions = draws(8, 5000, torch.float32)
    logits[0, 4999] = torch.nan
    logits[1] = torch.nan
    logits[2] = -torch.inf
    logits[3, 77] = torch.inf
    bad = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, torch.nan, torch.inf, 0.5])
    out = torch.empty(8, dtype=torch.int64), torch.empty(8, dtype=torch.bool)
    picks, broken = pick_sampled(logits, bad, seeds, positions, out=out)
    assert picks is out[0]
    wanted = pick_sampled_reference(logits, bad, seeds, positions)
    assert torch.equal(picks.int(), wanted[0])
    assert torch.equal(broken, wanted[1])
    assert broken.tolist() == [True, True, False, False, True, True, True, False]
    assert picks[1:4].tolist() == [0, 0, 77]
    assert torch.equal(picks[4:7].int(), pick_argmax(logits[4:7])[0])


@triton.jit
def noise_kernel(raw, seed, place, of_raw, of_place, COUNT: tl.constexpr):
    index = tl.arange(0, COUNT)
    tl.store(of_raw + index, gumbel_of(tl.load(raw + index)))
    noise = gumbel_tile(tl.load(seed), tl.load(place), COUNT, COUNT)
    tl.store(of_place + index, noise)


def test_noise_is_as_exact_as_stated() -> None:
    count = 1024
    generator = torch.Generator().manual_seed(1)
    raw = torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator, device="cpu")
    raw = raw.to(torch.get_default_device())
    # Both ends of (0, 1), the middle from both sides, and every scale in between.
    shifts = torch.arange(63)
    raw[:63], raw[63:126] = 1 << shifts, -1 ^ (1 << shifts)
    raw[126:130] = torch.tensor([0, -1, 2**63 - 1, -(2**63)])
    seed, place = torch.tensor([-5]), torch.tensor([31_000])
    of_raw, of_place = torch.empty(2, count)
    noise_kernel[(1,)](raw, seed, place, of_raw, of_place, COUNT=count)
    uniform = (((raw >> 12) & (2**52 - 1)).double() + 0.5) * 2.0**-52
    exact = -(-uniform.log()).log()
    assert ((of_raw - exact).abs() <= 4e-7 * (1 + exact.abs())).all()
    assert float(exact.max()) > 36.7 and float(exact.min()) < -3.6
    keyed = gumbel_noise(seed, place, 2 * count)[0, count:]
    assert ((of_place - keyed).abs() <= 4e-7 * (1 + keyed.abs())).all()


def test_the_op_declares_what_it_writes() -> None:
    arguments = draws(2, 40, torch.float32)
    picks, broken = pick_sampled_reference(*arguments)
    results = torch.library.opcheck(
        torch.ops.jetflow_kernels.pick_sampled.default,
        (*arguments, picks, broken),
        test_utils=("test_schema", "test_faketensor"),
    )
    assert set(results.values()) == {"SUCCESS"}
