# mypy: ignore-errors
"""Triton: the work list of tree attention, found on the device by every program for itself.

A work item is one tile of rows of one key head over one piece of one request. Nothing is read back
by the host, so one captured graph serves every batch within its capacities. ``plan.py`` holds the
same rule in Python.
"""

import triton
import triton.language as tl

from jetflow_kernels.attention import plan

SPLIT_WORK = tl.constexpr(plan.SPLIT_WORK)
MAX_SPLITS = tl.constexpr(plan.MAX_SPLITS)
MIN_CHUNK = tl.constexpr(plan.MIN_CHUNK)


@triton.jit
def chunk_lengths(
    prefix, rows, HEADS: tl.constexpr,
    WORK: tl.constexpr = SPLIT_WORK, SHORTEST: tl.constexpr = MIN_CHUNK,
):  # fmt: skip
    """``plan.chunk_length`` for tensors."""
    below = tl.maximum(rows - 1, 0)
    below |= below >> 1
    below |= below >> 2
    below |= below >> 4
    below |= below >> 8
    bucket = below + 1
    work = tl.zeros_like(bucket) + WORK
    most = tl.minimum(tl.maximum(work // (bucket * HEADS), 1), MAX_SPLITS)
    even = (prefix + bucket + most - 1) // most
    return tl.maximum((even + 63) // 64 * 64, SHORTEST)


@triton.jit
def requests_of(cu_nodes, cu_stride, prefix_len, prefix_stride, requests, BLOCK: tl.constexpr):
    """First row, rows and prefix of all requests, 0 past the last one."""
    index = tl.arange(0, BLOCK)
    real = index < requests
    first = tl.load(cu_nodes + index * cu_stride, mask=real, other=0)
    last = tl.load(cu_nodes + (index + 1) * cu_stride, mask=real, other=0)
    prefix = tl.load(prefix_len + index * prefix_stride, mask=real, other=0)
    return index, first, last - first, prefix


@triton.jit
def request_at(cu_nodes, cu_stride, prefix_len, prefix_stride, request):
    """First row, rows and prefix of one request, as scalars."""
    first = tl.load(cu_nodes + request * cu_stride)
    last = tl.load(cu_nodes + (request + 1) * cu_stride)
    return first, last - first, tl.load(prefix_len + request * prefix_stride)
