"""What the sm_90a kernel takes, and where it can run."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention.alignment import unaligned
from jetflow_kernels.attention.k2 import build
from jetflow_kernels.attention.k2.configurations import HEAD_DIMS, TYPES, Configuration

CAPABILITY = (9, 0)
PAGE_STEP = 8
"""A page has a multiple of so many rows: those of one swizzle atom."""
MOST_POSITIONS = 1 << 24
"""Of one request: up to there the kernel divides by the rows of a page without an error."""


def supports(arguments: TreeAttentionArguments, *, out: Tensor | None = None) -> str | None:
    """Why the sm_90a kernel does not take these tensors, or None where it does.

    Looks at shapes, types, strides and addresses only.

    Args:
        arguments: as checked by ``check_layout`` and ``check_kernel_limits``.
        out: the tensor to write, where it exists already.
    """
    q, pool = arguments.q, arguments.k_pool
    if q.dtype not in TYPES:
        return f"q is {q.dtype}; it takes float16 and bfloat16"
    if q.shape[2] not in HEAD_DIMS:
        return f"the head dim is {q.shape[2]}; it takes {' and '.join(map(str, HEAD_DIMS))}"
    if pool.shape[1] % PAGE_STEP:
        return f"a page has {pool.shape[1]} rows; it takes multiples of {PAGE_STEP}"
    if pool.shape[0] == 0:
        return "the pools have no pages"
    positions = arguments.page_table.shape[1] * pool.shape[1]
    if positions > MOST_POSITIONS:
        return f"a request can have {positions} positions; it takes up to {MOST_POSITIONS}"
    tensors = {"q": q, "k_pool": pool, "v_pool": arguments.v_pool}
    if out is not None:
        tensors["out"] = out
    return next(filter(None, (unaligned(name, tensor) for name, tensor in tensors.items())), None)


def unavailable(device: torch.device, variant: Configuration | None = None) -> str | None:
    """Why the sm_90a kernel cannot run on a device, or None where it can.

    Args:
        device: of the tensors.
        variant: which kernel; None: any of them.
    """
    if device.type != "cuda":
        return f"tensors are on {device}; it runs on CUDA devices"
    capability = _capability(device.index or 0)
    if capability != CAPABILITY:
        return "the device has capability {}.{}; it runs on 9.0".format(*capability)
    return build.missing(variant)


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)
