"""The noise of ``jetflow_core.noise`` as torch operations, for many rows at once on any device."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_KEY_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS, _LANES = 10, 4


def gumbel_rows(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """Standard Gumbel numbers of the first ``count`` tokens at each position.

    Row i is ``jetflow_core.noise.gumbel(seeds[i], positions[i], arange(count))``: the bits are the
    same, the logarithms those of the device.

    Args:
        seeds: int64 ``[N]``, read as 64 unsigned bits.
        positions: int64 ``[N]``, of the tokens to be picked.
        count: tokens.

    Returns:
        float64 ``[N, count]``.
    """
    bits = (_philox(seeds, positions, count) >> 12) & (2**52 - 1)
    return -(-((bits.double() + 0.5) * 2.0**-52).log()).log()


def _philox(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """The raw 64-bit stream of numpy's Philox with key (seed, 0) and counter (0, 0, position, 0).

    Four numbers come of a counter, and numpy counts before it draws: the first is 1.
    """
    blocks = torch.arange(1, -(-count // _LANES) + 1, device=seeds.device)
    shape = (seeds.shape[0], blocks.shape[0])
    nothing = torch.zeros(shape, dtype=torch.int64, device=seeds.device)
    lanes = (blocks.expand(shape), nothing, positions[:, None].expand(shape), nothing)
    key = (seeds[:, None], torch.zeros_like(seeds)[:, None])
    for _ in range(_ROUNDS):
        high0, low0 = _wide_product(lanes[0], _MULTIPLIERS[0])
        high1, low1 = _wide_product(lanes[2], _MULTIPLIERS[1])
        lanes = (high1 ^ lanes[1] ^ key[0], low1, high0 ^ lanes[3] ^ key[1], low0)
        key = (key[0] + _signed(_KEY_STEPS[0]), key[1] + _signed(_KEY_STEPS[1]))
    return torch.stack(lanes, dim=2).flatten(1)[:, :count]


def _wide_product(value: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low half of an unsigned 128-bit product; int64 wraps as unsigned bits do."""
    low, high = value & _LOW, _shifted(value)
    factor_low, factor_high = factor & _LOW, factor >> 32
    first, second = low * factor_high, high * factor_low
    carry = _shifted(_shifted(low * factor_low) + (first & _LOW) + (second & _LOW))
    return high * factor_high + _shifted(first) + _shifted(second) + carry, value * _signed(factor)


def _shifted(value: Tensor) -> Tensor:
    return (value >> 32) & _LOW


def _signed(pattern: int) -> int:
    return pattern - 2**64 if pattern >= 2**63 else pattern
