"""The lists of sampled picks and of the cache write."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.check import tolerances
from jetflow_kernels.round.argmax import pick_argmax
from jetflow_kernels.round.cache_write import norm_rope_kv_write, norm_rope_kv_write_reference
from jetflow_kernels.round.contests import expect_equal
from jetflow_kernels.round.noise import gumbel_noise
from jetflow_kernels.round.sampled import pick_sampled, pick_sampled_reference

_PAGE, _PAGES = 16, 40
_EPS = 1e-6


def sampled_picks(device: str, *, rows: int, tokens: int, dtype: torch.dtype) -> tuple[int, float]:
    """Picks of rows of all temperatures, where the two best are not within the stated rounding."""
    logits = ((torch.randn(rows, tokens) * 12).round() / 4).to(dtype)
    heats = torch.tensor([1.0, 0.0, 0.25, 0.7, 2.5, 1e-4]).repeat(rows)[:rows]
    seeds = torch.randint(-(2**62), 2**62, (rows,))
    places = torch.randint(0, 40_000, (rows,)).int()
    given = tuple(tensor.to(device) for tensor in (logits, heats, seeds, places))
    (found, broken), (wanted, _) = pick_sampled(*given), pick_sampled_reference(*given)
    expect_equal(
        "pick_sampled on one row alone", pick_sampled(*(t[-1:] for t in given))[0], found[-1:]
    )
    noise = gumbel_noise(given[2], given[3].long() + 1, tokens)
    best = (given[0].double() + given[1].double()[:, None] * noise).topk(2, dim=1)
    error = 4e-7 * (1 + noise.gather(1, best.indices).abs()).sum(1) * given[1]
    clear = (given[1] == 0) | (best.values[:, 0] - best.values[:, 1] > error)
    if clear.double().mean() < 0.9 or broken.any():
        raise RuntimeError("too few rows are clear, or a row without NaN is called broken")
    expect_equal("pick_sampled", found[clear], wanted[clear])
    greedy = given[1] == 0
    expect_equal("pick_sampled at 0", found[greedy], pick_argmax(given[0])[0][greedy])
    return 2 * rows, 0.0


def cache_writes(
    device: str, *, heads: tuple[int, int], dim: int, dtype: torch.dtype, packed: bool, norm: bool
) -> tuple[int, float]:
    """Queries, keys and values of 300 rows on scattered slots, some of them not to be written."""
    rows, (queries, pairs) = 300, heads
    angles = torch.rand(4096, dim // 2, device=device) * 60
    slots = torch.randperm(_PAGES * _PAGE)[:rows]
    slots[::7] = -1
    slots[1::11] = _PAGES * _PAGE
    given: dict[str, Any] = {
        "qkv": torch.randn(rows, (queries + 2 * pairs) * dim, device=device).to(dtype),
        "positions": torch.randint(0, 4096, (rows,)).int().to(device),
        "cos": angles.cos(),
        "sin": angles.sin(),
        "slots": slots.to(device),
        "eps": _EPS,
    }
    for name in ("q_weight", "k_weight"):
        given[name] = (torch.randn(dim, device=device) + 1).to(dtype) if norm else None
    found, wanted = (_pools(device, pairs, dim, dtype, packed=packed) for _ in "ab")
    told = norm_rope_kv_write(**given, k_pool=found[0], v_pool=found[1])
    asked = norm_rope_kv_write_reference(**given, k_pool=wanted[0], v_pool=wanted[1])
    expect_equal("the values", found[1], wanted[1])
    if not norm:
        expect_equal("the queries", told, asked)
        expect_equal("the keys", found[0], wanted[0])
        return rows, 0.0
    of_queries, of_keys = _allowed(given, queries, found[0])
    return rows, max(
        _within("the queries", told, asked, of_queries),
        _within("the keys", found[0], wanted[0], of_keys),
    )


def _allowed(given: dict[str, Any], queries: int, pool: Tensor) -> tuple[Tensor, Tensor]:
    """How far the queries may be off, and the keys of a pool: nothing where none is written."""
    heads = given["qkv"].unflatten(1, (-1, pool.shape[3]))
    cos, sin = (given[name][given["positions"].long()].to(pool.dtype) for name in ("cos", "sin"))
    q, k = heads[:, :queries], heads[:, queries : queries + pool.shape[2]]
    of_queries = tolerances.of_turned(q, given["q_weight"], cos, sin, _EPS)
    of_rows = tolerances.of_turned(k, given["k_weight"], cos, sin, _EPS)
    of_keys = torch.zeros(pool.shape, dtype=torch.float64, device=pool.device)
    slots = given["slots"]
    kept = (slots >= 0) & (slots < _PAGES * _PAGE)
    of_keys[slots[kept] // _PAGE, slots[kept] % _PAGE] = of_rows[kept]
    return of_queries, of_keys


def _within(what: str, found: Tensor, wanted: Tensor, allowed: Tensor) -> float:
    """The largest error in tolerances, at most 1."""
    error = tolerances.largest(found, wanted, allowed)
    if not error <= 1:
        raise RuntimeError(f"{what}: off by {error:.3g} tolerances")
    return error


def _pools(
    device: str, pairs: int, dim: int, dtype: torch.dtype, *, packed: bool
) -> tuple[Tensor, Tensor]:
    """Two pools in which nothing is written yet, side by side in one tensor if ``packed``."""
    if packed:
        both = torch.ones(_PAGES, pairs, _PAGE, 2 * dim, device=device, dtype=dtype)
        both = both.transpose(1, 2)
        return both[..., :dim], both[..., dim:]
    shape = (_PAGES, _PAGE, pairs, dim)
    keys, values = (torch.ones(shape, device=device, dtype=dtype) for _ in "kv")
    return keys, values
