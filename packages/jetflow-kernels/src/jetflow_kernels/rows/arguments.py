"""The arguments of row attention, checked in one place before anything is computed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jetflow_kernels.round.checks import expect, expect_range

KERNEL_TYPES = (torch.bfloat16, torch.float16, torch.float32)
REFERENCE_TYPES = (*KERNEL_TYPES, torch.float64)
MOST_GROUP = 32
"""Query heads that share one key head, at most."""
DIM_STEP, MOST_DIM = 8, 256
"""Head dims of the kernel are multiples of the one, up to the other."""


def check_rows(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    scale: float | None,
    out: Tensor | None,
) -> tuple[float, Tensor]:
    """Refuses what does not fit together, from shapes and types alone.

    Returns:
        The factor of the scores, and where the result goes.

    Raises:
        ValueError: naming the argument, what it has and what is allowed.
    """
    expect("queries", queries, (-1, -1, -1), REFERENCE_TYPES, queries.device)
    rows, heads, dim = queries.shape
    cache = (rows, -1, -1, dim)
    expect("keys", keys, cache, (queries.dtype,), queries.device)
    expect("values", values, tuple(keys.shape), (queries.dtype,), queries.device)
    expect("lengths", lengths, (rows,), (torch.int32,), queries.device)
    expect_range("the head dim of queries", dim, 1, MOST_DIM)
    kv_heads = keys.shape[2]
    if kv_heads == 0 or heads == 0 or heads % kv_heads:
        raise ValueError(f"query heads {heads} are no multiple of the key heads {kv_heads}")
    scale = 1.0 / math.sqrt(dim) if scale is None else scale
    if not math.isfinite(scale):
        raise ValueError(f"scale must be finite, got {scale}")
    if out is None:
        return scale, queries.new_empty(queries.shape)
    expect("out", out, tuple(queries.shape), (queries.dtype,), queries.device)
    return scale, out


def check_kernel_limits(queries: Tensor, keys: Tensor) -> None:
    """Refuses what the reference computes and the kernel does not.

    Raises:
        ValueError: naming the argument, what it has and what is allowed.
    """
    heads, dim = queries.shape[1:]
    if queries.dtype not in KERNEL_TYPES:
        allowed = ", ".join(map(str, KERNEL_TYPES))
        raise ValueError(f"queries must be one of {allowed}, got {queries.dtype}")
    if dim % DIM_STEP:
        raise ValueError(f"the head dim of queries must be a multiple of {DIM_STEP}, got {dim}")
    expect_range("query heads of a key head", heads // keys.shape[2], 1, MOST_GROUP)
