"""Noise of a sampled pick in plain torch: a fixed function of (seed, place, token)."""

from __future__ import annotations

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_STEPS = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def raw_noise(seeds: Tensor, places: Tensor, count: int) -> Tensor:
    """64 random bits for each of the first ``count`` tokens at each place.

    The counter-based generator Philox 4x64-10, keyed by (seed, 0): the counter (block, 0, place,
    0) gives the bits of tokens 4 * (block - 1) and the three behind it. It is the raw stream of
    numpy's ``Philox(key=[seed, 0], counter=[0, 0, place, 0])``.

    Args:
        seeds: [N] int64, read as 64 unsigned bits.
        places: [N] int64, likewise, on the same device.
        count: tokens, at least 1.

    Returns:
        [N, count] int64, uniform over all 2**64 patterns.
    """
    blocks = torch.arange(1, -(-count // 4) + 1, device=seeds.device)
    shape = (seeds.shape[0], blocks.shape[0])
    zero = torch.zeros(shape, dtype=torch.int64, device=seeds.device)
    c0, c1, c2, c3 = blocks.expand(shape), zero, places.long()[:, None].expand(shape), zero
    k0, k1 = seeds[:, None], torch.zeros_like(seeds)[:, None]
    for _ in range(_ROUNDS):
        high0, low0 = _product(c0, _MULTIPLIERS[0])
        high1, low1 = _product(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _signed(_STEPS[0]), k1 + _signed(_STEPS[1])
    return torch.stack((c0, c1, c2, c3), dim=2).flatten(1)[:, :count]


def gumbel_noise(seeds: Tensor, places: Tensor, count: int) -> Tensor:
    """The standard Gumbel numbers of the first ``count`` tokens at each place.

    -log(-log(u)), with u the upper 52 bits of ``raw_noise`` and one half, times 2**-52.

    Args:
        seeds: see ``raw_noise``.
        places: see there.
        count: see there.

    Returns:
        [N, count] float64, from -3.61 to 36.74.
    """
    bits = (raw_noise(seeds, places, count) >> 12) & (2**52 - 1)
    uniform = (bits.double() + 0.5) * 2.0**-52
    return -(-uniform.log()).log()


def _product(value: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    """The upper and lower 64 bits of an unsigned product, from 32-bit halves."""
    a0, a1 = value & _LOW, _upper(value)
    b0, b1 = constant & _LOW, constant >> 32
    # Sums and products of int64 wrap, so each keeps the bits of the unsigned result.
    cross0, cross1 = a0 * b1, a1 * b0
    carry = _upper(_upper(a0 * b0) + (cross0 & _LOW) + (cross1 & _LOW))
    return a1 * b1 + _upper(cross0) + _upper(cross1) + carry, value * _signed(constant)


def _upper(value: Tensor) -> Tensor:
    return (value >> 32) & _LOW


def _signed(pattern: int) -> int:
    return pattern - 2**64 if pattern >= 2**63 else pattern
