"""What the flash-attn backend takes, and where it can run."""

from __future__ import annotations

from functools import cache

import torch

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention.alignment import unaligned
from jetflow_kernels.attention.flash import library

TYPES = (torch.float16, torch.bfloat16)
HEAD_DIMS = (64, 128)
WHOLE_PAGE = 128
"""Rows of the pages that its kernels bring whole, with the slots behind a request's last row. Other
pages are copied row by row, zeros in place of what lies behind the last one."""
MAJORS = (9, 10, 11)
"""Of the compute capability, where flash-attn 4 has paged keys and values."""


def supports(arguments: TreeAttentionArguments, *, cut: str) -> str | None:
    """Why flash-attn does not take these tensors, or None where it does.

    Args:
        arguments: as checked by ``check_layout`` and ``check_kernel_limits``.
        cut: as in ``tree_attention``.
    """
    q, pool = arguments.q, arguments.k_pool
    if q.dtype not in TYPES:
        return f"q is {q.dtype}; it takes float16 and bfloat16"
    if q.shape[2] not in HEAD_DIMS:
        return f"the head dim is {q.shape[2]}; it takes {' and '.join(map(str, HEAD_DIMS))}"
    if pool.shape[0] == 0:
        return "the pools have no pages"
    if cut == "by_request":
        return "cut is by_request; flash-attn cuts as it likes and promises no equal bits"
    # Queries and tables it would copy; a copy of the pools at every call is no way to run.
    for name, tensor in (("k_pool", pool), ("v_pool", arguments.v_pool)):
        reason = unaligned(name, tensor)
        if reason is not None:
            return reason
    return None


def unavailable(device: torch.device) -> str | None:
    """Why flash-attn cannot run on a device, or None where it can; imports nothing.

    Args:
        device: of the tensors.
    """
    if device.type != "cuda":
        return f"tensors are on {device}; it runs on CUDA devices"
    major, minor = _capability(device.index or 0)
    if major not in MAJORS:
        allowed = ", ".join(f"{each}.x" for each in MAJORS)
        return f"the device has capability {major}.{minor}; paged keys need {allowed}"
    return _missing()


@cache
def _missing() -> str | None:
    return library.missing()


@cache
def _capability(index: int) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)
