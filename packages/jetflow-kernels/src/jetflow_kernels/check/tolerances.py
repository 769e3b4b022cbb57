"""How far right results may be apart, from the length of their sums and the type.

A sum of K products in float32 rounds K times, each time by at most u = 2^-24 of what has been
summed up so far. In an order that is fixed before the values are known, and for values of either
sign, that is about the root of the sum of the squared products, p, at most; and roundings up and
down cancel. So the deviation of the whole error is at most u sqrt(K) p, and about a third of it
where all K are summed up in one chain. Products of numbers that were rounded to TF32 are apart by
2^-11 of each product: hundreds of times as much at K = 4096.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HALF_STEP = torch.finfo(torch.float32).eps / 2
"""What one rounding to float32 changes at most, in proportion."""
DEVIATIONS = 8.0
"""Of the bound on the deviation: one in 10^13 right numbers would be past it."""
_STEEPEST = 1.1
"""Largest slope of the SiLU."""
_GATED_STEPS = 8.0
"""Roundings of a 16-bit type that gated results are apart by."""
_SILU_STEPS = 6.0
"""Steps of float32 for exponential, quotient and products: hardware's are right to two each."""
_TURN_STEPS = 5.0
"""Norm, weight, cosine, product and sum: each may be rounded the other way."""
_RSQRT_STEPS = 6.0
"""Mean, eps and hardware's reciprocal root of a norm, in roundings of float32."""


def of_product(x: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """For ``linear`` against float64.

    Args:
        x: [T, in].
        weight: [out, in] in the same type.
        wanted: [T, out], rounded to that type.

    Returns:
        [T, out] float64. Of 16-bit types one step of the number and of a usual one: tensor cores
        cut their sums off, and the type hides it.
    """
    step = torch.finfo(wanted.dtype).eps
    if wanted.dtype != torch.float32:
        return step * (wanted.double().abs() + _usual(wanted))
    return step * wanted.double().abs() + _of_sums(x, weight)


def of_gated(x: Tensor, weight: Tensor, wanted: Tensor) -> Tensor:
    """For ``gate_up_silu`` against float64: what both products' errors become.

    Args:
        x: [T, in].
        weight: [2 out, in] in the same type.
        wanted: [T, out], rounded to that type.

    Returns:
        [T, out] float64.
    """
    step = torch.finfo(wanted.dtype).eps
    if wanted.dtype != torch.float32:
        return _GATED_STEPS * step * (wanted.double().abs() + _usual(wanted))
    exact = x.double() @ weight.double().T
    gate, up = exact.chunk(2, dim=1)
    of_gate, of_up = (step * exact.abs() + _of_sums(x, weight)).chunk(2, dim=1)
    silu = gate * gate.sigmoid()
    # The exponential of a rounded number is off in proportion to the number.
    inexact = step * (1.5 * gate.abs() + _SILU_STEPS) * wanted.double().abs()
    return _STEEPEST * of_gate * (up.abs() + of_up) + silu.abs() * of_up + inexact


def of_turned(heads: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, eps: float) -> Tensor:
    """For normed and turned heads, of two results that are rounded at the same places.

    Args:
        heads: [T, H, D], before the norm.
        weight: [D] of the norm, in the same type.
        cos: [T, D / 2], each row's line of the table.
        sin: likewise.
        eps: of the norm.

    Returns:
        [T, H, D] float64: a bound for sums of squares in any order, and one step of the type for
        each place of rounding, in proportion to both products of the rotation.
    """
    wide = heads.double()
    normed = wide * (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.double()
    a, b = normed.abs().chunk(2, dim=-1)
    c, s = (line.double().abs()[:, None] for line in (cos, sin))
    reach = torch.cat((a * c + b * s, b * c + a * s), dim=-1)
    told = torch.finfo(heads.dtype)
    # Of two sums of D squares, each off by D roundings at most, of which a root halves the share.
    of_norm = (heads.shape[-1] + 2 * _RSQRT_STEPS) * HALF_STEP
    least = told.smallest_normal * told.eps
    return (_TURN_STEPS * told.eps + of_norm) * reach + _TURN_STEPS * least


def largest(found: Tensor, wanted: Tensor, allowed: Tensor) -> float:
    """The largest error in tolerances; infinite where one number is NaN, or is wrong for 0."""
    off = (found.double() - wanted.double()).abs()
    return float((off / allowed).where(off != 0, 0.0).nan_to_num(torch.inf, torch.inf).max())


def _of_sums(x: Tensor, weight: Tensor) -> Tensor:
    squares = x.double().pow(2) @ weight.double().pow(2).T
    return DEVIATIONS * HALF_STEP * math.sqrt(x.shape[1] + 1) * squares.sqrt()


def _usual(wanted: Tensor) -> Tensor:
    return wanted.double().pow(2).mean().sqrt()
