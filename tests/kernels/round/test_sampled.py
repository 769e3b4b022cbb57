"""Sampled picks draw from the law they should, with the noise that single requests draw with."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from jetflow_core import noise as request_noise
from jetflow_core.picker import TokenPicker
from jetflow_core.sampling import SamplingParams
from jetflow_kernels.round import pick_argmax_reference, pick_sampled, pick_sampled_reference
from jetflow_kernels.round.noise import gumbel_noise, raw_noise
from torch import Tensor


def assert_drawn_from(picks: Tensor, law: Tensor) -> None:
    """A chi-square test at four standard deviations; rare tokens count as one."""
    wanted = law.double() * len(picks)
    counts = torch.bincount(picks.long(), minlength=len(law)).double()
    assert counts[law == 0].eq(0).all()
    often = wanted >= 5
    wanted, counts = (
        torch.cat((x[often], x[~often].sum()[None])) if x[~often].sum() else x[often]
        for x in (wanted, counts)
    )
    statistic = float(((counts - wanted).square() / wanted).sum())
    freedom = len(wanted) - 1
    share = 2 / (9 * freedom)
    assert statistic < freedom * (1 - share + 4 * math.sqrt(share)) ** 3


@pytest.mark.parametrize("temperature", [0.25, 1.0, 3.0])
def test_draws_follow_the_softmax_over_positions(temperature: float) -> None:
    count = 30_000
    logits = torch.randn(40, generator=torch.Generator().manual_seed(3)) * 2
    logits[[5, 6]] = torch.tensor([-torch.inf, float(logits.max())])
    picks, broken = pick_sampled_reference(
        logits.expand(count, -1),
        torch.full((count,), temperature),
        torch.full((count,), 1234),
        torch.arange(count),
    )
    assert not broken.any()
    assert_drawn_from(picks, (logits.double() / temperature).softmax(0))
    # Neighbouring positions know nothing of each other.
    pairs = picks[:-1:2].clamp(max=7) * 8 + picks[1::2].clamp(max=7)
    law = (logits.double() / temperature).softmax(0)
    law = torch.cat((law[:7], law[7:].sum()[None]))
    assert_drawn_from(pairs, torch.outer(law, law).flatten())


def test_draws_follow_the_softmax_over_seeds() -> None:
    count = 20_000
    logits = torch.randn(10, generator=torch.Generator().manual_seed(4))
    seeds, place = torch.arange(count) - 77, torch.full((count,), 9)
    picks, _ = pick_sampled_reference(logits.expand(count, -1), torch.ones(count), seeds, place)
    assert_drawn_from(picks, logits.double().softmax(0))


def test_the_noise_is_numpys_and_that_of_single_requests() -> None:
    seeds = [0, 1, 2**63 - 1, 2**63, 2**64 - 1]
    places = [0, 3, 2**31, 40_000, 12]
    signed = torch.from_numpy(np.array(seeds, dtype=np.uint64).view(np.int64))
    found = raw_noise(signed, torch.tensor(places), 23).numpy().view(np.uint64)
    noise = gumbel_noise(signed, torch.tensor(places), 23).numpy()
    for row, (seed, place) in enumerate(zip(seeds, places, strict=True)):
        philox = np.random.Philox(
            key=np.array([seed, 0], dtype=np.uint64),
            counter=np.array([0, 0, place, 0], dtype=np.uint64),
        )
        assert np.array_equal(found[row], philox.random_raw(23))
        wanted = request_noise.gumbel(seed, place, np.arange(23))
        np.testing.assert_allclose(noise[row], wanted, rtol=1e-14)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.25])
def test_a_request_draws_the_same_tokens_row_by_row(temperature: float) -> None:
    logits = torch.randn(12, 200, generator=torch.Generator().manual_seed(5)) * 3
    prompt, answer = [3, 1, 4], [1] * 12
    params = SamplingParams(temperature=temperature, seed=2**63 + 11)
    picker = TokenPicker(params, prompt, [], 200)
    wanted = [picker.pick(row, answer[:done]).token for done, row in enumerate(logits)]
    picks, _ = pick_sampled_reference(
        logits,
        torch.full((12,), temperature),
        torch.full((12,), 11 - 2**63),
        # The last row of the prompt has position 2, and its pick goes to place 3.
        2 + torch.arange(12),
    )
    assert picks.tolist() == wanted
    assert (picks.tolist() == pick_argmax_reference(logits)[0].tolist()) == (temperature == 0)


def test_each_row_has_its_own_temperature_and_the_batch_is_nothing_to_it() -> None:
    logits = torch.randn(50, generator=torch.Generator().manual_seed(6)).expand(6, -1)
    temperatures = torch.tensor([0.0, 1.0, 1.0, 0.0, 50.0, 1.0])
    positions = torch.tensor([1, 1, 2, 2, 1, 1], dtype=torch.int32)
    seeds = torch.tensor([5, 5, 5, 6, 5, 5])
    picks, _ = pick_sampled_reference(logits, temperatures, seeds, positions)
    assert picks[0] == picks[3] == logits[0].argmax()
    assert picks[1] == picks[5]
    alone = [
        pick_sampled_reference(*(t[i : i + 1] for t in (logits, temperatures, seeds, positions)))
        for i in range(6)
    ]
    assert torch.equal(torch.cat([found for found, _ in alone]), picks)


GOOD = {
    "logits": torch.zeros(3, 8),
    "temperatures": torch.zeros(3),
    "seeds": torch.zeros(3, dtype=torch.int64),
    "positions": torch.zeros(3, dtype=torch.int32),
}
PICKS, FLAGS = torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.bool)


@pytest.mark.parametrize("op", [pick_sampled, pick_sampled_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logits": torch.zeros(3)}, r"logits must have shape \[any, any\], got \[3\]"),
        ({"logits": torch.zeros(3, 0)}, r"vocabulary V .* 1..1048576, got 0"),
        ({"logits": torch.zeros(8, 3).T}, r"no gaps in a row, got strides \(1, 3\)"),
        ({"logits": torch.zeros(3, 8).double()}, r"logits must be .* got torch.float64"),
        ({"temperatures": torch.zeros(2)}, r"temperatures must have shape \[3\], got \[2\]"),
        ({"temperatures": torch.zeros(3).half()}, r"temperatures must be torch.float32"),
        ({"temperatures": torch.zeros(1).expand(3)}, r"temperatures must be contiguous"),
        ({"seeds": torch.zeros(3, dtype=torch.int32)}, r"seeds must be torch.int64"),
        ({"positions": torch.zeros(3)}, r"positions must be .* got torch.float32"),
        ({"out": (PICKS[:2], FLAGS)}, r"out\[0\] must have shape \[3\], got \[2\]"),
        ({"out": (PICKS, PICKS)}, r"out\[1\] must be torch.bool, got torch.int32"),
    ],
)
def test_wrong_arguments(
    op: Callable[..., object], change: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        op(**{**GOOD, **change})


def test_the_compiled_kernel_refuses_tensors_of_the_cpu() -> None:
    with pytest.raises(ValueError, match="CUDA device, got tensors on cpu"):
        pick_sampled(**GOOD)
