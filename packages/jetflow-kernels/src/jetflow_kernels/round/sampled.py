"""The target's pick after every row, greedy or sampled, one temperature and seed a row."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    INTEGERS,
    LOGITS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    power_of_two,
)
from jetflow_kernels.round.noise import gumbel_noise
from jetflow_kernels.round.topk import MOST_VOCABULARY

PART = 2048
"""Logits of one program: 75 programs a row for 151,936 tokens."""


def pick_sampled(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """A token of every row drawn from softmax(logits / temperature), in one pass over the logits.

    It is the token with the greatest logit + temperature * noise, the smallest on ties, and noise
    a Gumbel number that depends on the row's seed, the place of the pick and the token alone
    (``noise.raw_noise``): not on the batch, the row's index, or how the vocabulary is split. So a
    row of a tree and the same row of plain decoding draw the same token, and one walk serves
    greedy and sampled requests. At temperature 0 a row is what ``pick_argmax`` gives.

    The noise is computed in float32, within 4e-7 * (1 + |noise|) of the exact number, and added in
    float64: only where the two greatest values are closer than that times the temperature can the
    pick differ from the reference's.

    Args:
        logits: [N, V] float32, bfloat16 or float16, the last axis without gaps.
        temperatures: [N] float32, contiguous, finite and at least 0.
        seeds: [N] int64, contiguous, read as 64 unsigned bits.
        positions: [N] int32 or int64, contiguous, the positions of the rows themselves, as
            ``build_tree`` gives them; the pick goes to the place behind, ``position + 1``, by
            which its noise is keyed.
        out: the two results, to be written instead of new tensors; picks may also be int64.

    Returns:
        picks: [N] int32. NaN counts as -inf.
        broken: [N] bool, whether a logit of the row is NaN or its temperature is not as said, in
            which case the pick is that of temperature 0.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    picks, broken = _check(logits, temperatures, seeds, positions, out)
    if logits.shape[0]:
        torch.ops.jetflow_kernels.pick_sampled(
            logits, temperatures, seeds, positions, picks, broken
        )
    return picks, broken


def pick_sampled_reference(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """What ``pick_sampled`` returns, on any device, with noise in float64.

    Args:
        logits: see there.
        temperatures: see there.
        seeds: see there.
        positions: see there.
        out: see there.

    Returns:
        The picks and whether each row is broken.

    Raises:
        ValueError: as there, except that any device will do.
    """
    picks, broken = _check(logits, temperatures, seeds, positions, out)
    vocabulary = logits.shape[1]
    nan = logits.isnan()
    values = logits.double().masked_fill(nan, -torch.inf)
    sane = temperatures.isfinite() & (temperatures >= 0)
    scale = temperatures.masked_fill(~sane, 0.0).double()
    noise = gumbel_noise(seeds, positions.long() + 1, vocabulary)
    values = values + scale[:, None] * noise
    greatest = values == values.amax(1, keepdim=True)
    # The first of equal maxima: argmax of torch promises none.
    tokens = torch.arange(vocabulary, device=logits.device)
    picks.copy_(torch.where(greatest, tokens, vocabulary).amin(1))
    broken.copy_(nan.any(1) | ~sane)
    return picks, broken


def launch(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    picks: Tensor,
    broken: Tensor,
    *,
    part: int,
) -> None:
    """Compute ``picks`` and ``broken`` of checked arguments, ``part`` logits a program.

    Args:
        logits: as all others see ``pick_sampled``.
        temperatures: see there.
        seeds: see there.
        positions: see there.
        picks: see there.
        broken: see there.
        part: a power of two, at least 4; the results do not depend on it.
    """
    from jetflow_kernels.round.sampled_kernel import sampled_merge_kernel, sampled_part_kernel

    rows, vocabulary = logits.shape
    parts = -(-vocabulary // part)
    device = logits.device
    with device_of(sampled_part_kernel, logits):
        values = torch.empty(rows, parts, dtype=torch.float64, device=device)
        tokens, flags = torch.empty(2, rows, parts, dtype=torch.int32, device=device)
        sampled_part_kernel[(rows, parts)](
            logits, temperatures, seeds, positions, values, tokens, flags,
            logits.stride(0), vocabulary, parts, PART=part, num_warps=4,
        )  # fmt: skip
        sampled_merge_kernel[(rows,)](
            values, tokens, flags, picks, broken, parts, PARTS=power_of_two(parts), num_warps=1
        )


# Defined by its schema: ``custom_op`` would import torch's compiler on the first call.
OPERATOR = "jetflow_kernels::pick_sampled"
torch.library.define(
    OPERATOR,
    "(Tensor logits, Tensor temperatures, Tensor seeds, Tensor positions, Tensor(a!) picks,"
    " Tensor(b!) broken) -> ()",
)


@torch.library.impl(OPERATOR, ("cpu", "cuda"))
def _pick_sampled(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    picks: Tensor,
    broken: Tensor,
) -> None:
    part = power_of_two(min(logits.shape[1], PART), least=32)
    launch(logits, temperatures, seeds, positions, picks, broken, part=part)


@torch.library.register_fake(OPERATOR)
def _(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    picks: Tensor,
    broken: Tensor,
) -> None:
    """The results are written in place; nothing is made."""


def _check(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    out: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor]:
    device = logits.device
    expect("logits", logits, (-1, -1), LOGITS, device)
    rows, vocabulary = logits.shape
    expect_range("the vocabulary V of logits", vocabulary, 1, MOST_VOCABULARY)
    if logits.stride(1) != 1:
        raise ValueError(f"logits must have no gaps in a row, got strides {logits.stride()}")
    for name, tensor, types in (
        ("temperatures", temperatures, (torch.float32,)),
        ("seeds", seeds, (torch.int64,)),
        ("positions", positions, INTEGERS),
    ):
        expect(name, tensor, (rows,), types, device)
        expect_contiguous(name, tensor)
    if out is None:
        picks = torch.empty(rows, dtype=torch.int32, device=device)
        return picks, torch.empty(rows, dtype=torch.bool, device=device)
    for name, tensor, types in (("out[0]", out[0], INTEGERS), ("out[1]", out[1], (torch.bool,))):
        expect(name, tensor, (rows,), types, device)
        expect_contiguous(name, tensor)
    return out
