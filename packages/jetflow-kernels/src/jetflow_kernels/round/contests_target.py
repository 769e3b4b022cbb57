"""Contests of the steps inside the target's pass and right behind it."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from jetflow_kernels.round.cache_write import norm_rope_kv_write, norm_rope_kv_write_reference
from jetflow_kernels.round.contests import Contest, Sizes, expect_equal, random_logits
from jetflow_kernels.round.sampled import pick_sampled, pick_sampled_reference

_QUERIES = 4
"""Query heads of a key head."""


def expect_near(name: str, found: Tensor, wanted: Tensor) -> None:
    """Compares what may differ by a rounding or two of its type.

    Raises:
        RuntimeError: it differs by more; nothing may be timed then.
    """
    step = torch.finfo(found.dtype).eps
    allowed = step * (2 * wanted.float().abs() + wanted.float().abs().max())
    if not bool(((found.float() - wanted.float()).abs() <= allowed).all()):
        raise RuntimeError(f"{name} differs from its reference; nothing was timed")


def sampled(sizes: Sizes, rows: int, device: str) -> Contest:
    """The target's sampled picks at temperature 0.7."""
    number = max(2, sizes.copies // 4)
    copies = [random_logits(rows, sizes, device, torch.bfloat16) for _ in range(number)]
    keys = (
        torch.full((rows,), 0.7, device=device),
        torch.arange(rows, device=device),
        torch.arange(rows, dtype=torch.int32, device=device) + 1000,
    )

    def torch_sampling(logits: Tensor) -> Tensor:
        weights = (logits.float() / keys[0][:, None]).softmax(1)
        return (weights / torch.empty_like(weights).exponential_(1.0)).argmax(1)

    return Contest(
        name="pick_sampled",
        size=f"{rows} x {sizes.vocabulary} bf16",
        check=lambda: expect_equal(
            "pick_sampled",
            pick_sampled(copies[0], *keys),
            pick_sampled_reference(copies[0], *keys),
        ),
        ours=[partial(pick_sampled, x, *keys) for x in copies],
        peers={"torch softmax + exponential": [partial(torch_sampling, x) for x in copies]},
    )


def written(sizes: Sizes, rows: int, device: str) -> Contest:
    """Norms, rotation and cache write of one layer."""
    heads, dim = sizes.heads, sizes.dim
    pages = -(-rows // sizes.page) + 1

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device=device).to(torch.bfloat16)

    qkv = random(rows, (_QUERIES + 2) * heads * dim)
    positions = torch.arange(rows, dtype=torch.int32, device=device) + 1000
    angles = torch.rand(1000 + rows, dim // 2, device=device) * 6
    slots = torch.randperm(pages * sizes.page, device=device)[:rows]
    pools = random(pages, sizes.page, heads, dim), random(pages, sizes.page, heads, dim)
    weights = random(dim), random(dim)
    given = (qkv, positions, angles.cos(), angles.sin(), slots)

    def check() -> None:
        found, wanted = [pool.clone() for pool in pools], [pool.clone() for pool in pools]
        q_weight, k_weight = weights
        out = norm_rope_kv_write(*given, found[0], found[1], q_weight=q_weight, k_weight=k_weight)
        reference = norm_rope_kv_write_reference(
            *given, wanted[0], wanted[1], q_weight=q_weight, k_weight=k_weight
        )
        # Sums of squares are added up in another order.
        expect_near("norm_rope_kv_write", out, reference)
        expect_near("norm_rope_kv_write", found[0], wanted[0])
        expect_equal("norm_rope_kv_write", found[1], wanted[1])

    step = partial(norm_rope_kv_write, *given, *pools, q_weight=weights[0], k_weight=weights[1])
    return Contest(
        name="norm_rope_kv_write",
        size=f"{rows} rows, {_QUERIES * heads} and {heads} heads of {dim} bf16",
        check=check,
        ours=[step] * 4,
    )
