"""Starts the sm_90a kernel of tree attention on checked tensors; waits for nothing.

The programs of a cluster share a tile and put their results together. Where ``plan.cluster_size``
prefers pieces by length, the Triton version's merge does that. Importing this file imports Triton.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2 import build, driver
from jetflow_kernels.attention.k2.configurations import (
    STEP,
    TYPES,
    Configuration,
    configuration_for,
)
from jetflow_kernels.attention.launch import merge_pieces, pieces_room

_LOG2_E = 1.0 / math.log(2.0)
_BYTES = 2
_SIGNS = 0x80008000
"""The signs of two values in one register."""
_POINTERS = (
    "q", "v_pool", "page_table", "cu_nodes", "prefix_len", "ancestors",
    "out", "lse", "partial", "partial_lse",
)  # fmt: skip
_STRIDES = (
    "q_row", "q_head", "v_page", "v_slot", "v_head", "table_request", "table_entry",
    "cu_stride", "prefix_stride", "words_row", "words_word",
    "out_row", "out_head", "lse_row", "lse_head",
)  # fmt: skip
_NUMBERS = (
    "rows",
    "requests",
    "heads",
    "group",
    "kv_heads",
    "cluster",
    "page",
    "box",
    "words",
)
_INVERSES = ("group_inverse", "kv_heads_inverse", "page_inverse", "cluster_inverse")


class Params(ctypes.Structure):
    """``Params`` of ``params.cuh``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _STRIDES),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        *((name, ctypes.c_uint32) for name in _INVERSES),
        ("q_keep", ctypes.c_uint32),
        ("q_flip", ctypes.c_uint32),
        ("factor", ctypes.c_float),
    ]


def launch(
    arguments: TreeAttentionArguments,
    *,
    out: Tensor,
    lse: Tensor | None,
    scale: float,
    tiles: plan.Tiles | None = None,
    programs: int | None = None,
    cluster: int | None = None,
    early: bool = True,
) -> None:
    """Computes ``out`` and ``lse`` on the current stream; can be captured in a CUDA graph.

    The first call in a process loads the kernel, and the first on a machine builds it; neither can
    be captured.

    Args:
        arguments: checked by ``check_layout`` and ``check_kernel_limits``, and such that
            ``supports`` and ``unavailable`` have nothing against them.
        out: [T, Hq, D], every row is written.
        lse: [T, Hq] float32, or None.
        scale: factor of the scores.
        tiles: their rows choose the kernel; None: ``tiles_for`` the shapes.
        programs: how many programs share the work; None: as many as the device holds. Changes
            no bits.
        cluster: programs that share a tile, 1 to ``plan.MAX_CLUSTER``, or ``plan.BY_LENGTH``; None:
            ``plan.cluster_size`` of the shapes.
        early: whether programs may be placed while the kernel ahead on the stream still runs; they
            wait for its end before they read or write anything. Changes no bits.

    Raises:
        BuildError: the kernel could not be built.
        DriverError: the CUDA driver refused.
    """
    if not len(arguments.q):
        return
    call = prepare(
        arguments, out=out, lse=lse, scale=scale, tiles=tiles, programs=programs, cluster=cluster
    )
    start(call, build.cubin(call.variant), early=early)
    if call.partials is not None:
        with torch.cuda.device(call.device):
            merge_pieces(arguments, out, lse, *call.partials, call.programs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """What one call passes to the driver."""

    variant: Configuration
    programs: int
    """All that are started, a multiple of ``cluster``."""
    cluster: int
    """As in ``launch``."""
    parameters: Params
    maps: tuple[ctypes.Array[ctypes.c_char], ...]
    """Of the pools, for the copy engine."""
    partials: tuple[Tensor, Tensor] | None
    """Room for results of pieces, where another kernel puts them together."""
    device: int


def prepare(
    arguments: TreeAttentionArguments,
    *,
    out: Tensor,
    lse: Tensor | None,
    scale: float,
    tiles: plan.Tiles | None = None,
    programs: int | None = None,
    cluster: int | None = None,
) -> Call:
    """What ``launch`` starts for these arguments, which are its own; there is at least one row.

    Raises:
        DriverError: the CUDA driver refused.
    """
    variant = configuration_for(arguments, tiles)
    device = arguments.q.get_device()
    if cluster is None:
        cluster = _cluster_size(arguments, variant)
    programs = programs or _multiprocessors(device) * variant.programs
    if cluster != plan.BY_LENGTH:
        programs = _in_clusters(arguments, variant, programs, cluster)
    partials = pieces_room(arguments) if cluster == plan.BY_LENGTH else None
    box = box_rows(arguments.k_pool.shape[1])
    parameters = _params(arguments, out, lse, partials, box, cluster)
    _set_scale(parameters, scale)
    return Call(
        variant=variant,
        programs=programs,
        cluster=cluster,
        parameters=parameters,
        maps=(_map(arguments.k_pool, box), _map(arguments.v_pool, box)),
        partials=partials,
        device=device,
    )


def start(
    call: Call, code: bytes, *, early: bool, parameters: ctypes.Structure | None = None
) -> None:
    """Starts one kernel on the current stream of its device.

    Args:
        call: made by ``prepare``; its tensors are alive.
        code: a cubin of its variant.
        early: as in ``launch``.
        parameters: in place of the call's own; None: those.

    Raises:
        DriverError: the CUDA driver refused.
    """
    variant = call.variant
    with torch.cuda.device(call.device):
        driver.use_device(call.device)
        kernel = driver.load(code, variant.name, variant.shared_bytes, call.device)
        kernel.launch(
            call.programs,
            variant.threads,
            torch.cuda.current_stream(call.device).cuda_stream,
            (call.parameters if parameters is None else parameters, *call.maps),
            cluster=max(call.cluster, 1),
            early=early,
        )


def _cluster_size(arguments: TreeAttentionArguments, variant: Configuration) -> int:
    """``plan.cluster_size`` of a call."""
    rows, heads, _ = arguments.q.shape
    page, kv_heads = arguments.k_pool.shape[1:3]
    return plan.cluster_size(
        *(rows, arguments.prefix_len.shape[0], heads // kv_heads, kv_heads),
        capacity=arguments.page_table.shape[1] * page,
        tile_rows=variant.rows,
    )


def _in_clusters(
    arguments: TreeAttentionArguments, variant: Configuration, room: int, cluster: int
) -> int:
    """Programs to start: whole clusters that ``room`` holds, no more than there can be tiles."""
    rows, heads, _ = arguments.q.shape
    kv_heads = arguments.k_pool.shape[2]
    requests = arguments.prefix_len.shape[0]
    tiles = plan.most_tiles(rows, requests, heads // kv_heads, variant.rows)
    return max(1, min(room // cluster, tiles * kv_heads)) * cluster


def box_rows(page: int) -> int:
    """Rows of one bulk copy: the most that lie within one page wherever a tile begins."""
    return math.gcd(page, STEP)


def _params(
    arguments: TreeAttentionArguments,
    out: Tensor,
    lse: Tensor | None,
    partials: tuple[Tensor, Tensor] | None,
    box: int,
    cluster: int,
) -> Params:
    q, v_pool = arguments.q, arguments.v_pool
    tensors = (
        *(q, v_pool, arguments.page_table, arguments.cu_nodes, arguments.prefix_len),
        *(arguments.ancestors, out, lse, *(partials or (None, None))),
    )
    strides = (
        *q.stride()[:2],
        *v_pool.stride()[:3],
        *arguments.page_table.stride(),
        *arguments.cu_nodes.stride(),
        *arguments.prefix_len.stride(),
        *arguments.ancestors.stride(),
        *out.stride()[:2],
        *((0, 0) if lse is None else lse.stride()),
    )
    rows, heads = q.shape[:2]
    page, kv_heads = v_pool.shape[1:3]
    words = arguments.ancestors.shape[1]
    requests = arguments.prefix_len.shape[0]
    return Params(
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        *strides,
        *(rows, requests, heads, heads // kv_heads, kv_heads, cluster, page, box, words),
        *(inverse(heads // kv_heads), inverse(kv_heads), inverse(page), inverse(max(cluster, 1))),
    )


def inverse(divisor: int) -> int:
    """By which the kernel multiplies instead of a division: see ``divided`` of geometry.cuh."""
    return 0 if divisor == 1 else (1 << 32) // divisor + 1


def _set_scale(parameters: Params, scale: float) -> None:
    """Keeps the factor of the scores positive: its sign and a factor of 0 go into the queries."""
    # As a float32, in which a small scale may be 0.
    factor = ctypes.c_float(abs(scale) * _LOG2_E).value
    parameters.q_keep = 0 if factor == 0 else 0xFFFFFFFF
    parameters.q_flip = _SIGNS if scale < 0 and factor != 0 else 0
    parameters.factor = factor or 1.0


def _map(pool: Tensor, box: int) -> ctypes.Array[ctypes.c_char]:
    """A pool for the copy engine: values, rows of a page, heads, pages."""
    pages, page, heads, dim = pool.shape
    by_page, by_slot, by_head, _ = pool.stride()
    sizes = (dim, page, heads, pages)
    # An axis of one element may have any stride, also one that the driver refuses.
    strides = tuple(
        stride * _BYTES if size > 1 else dim * _BYTES
        for size, stride in zip(sizes[1:], (by_slot, by_head, by_page), strict=True)
    )
    return driver.tensor_map(pool.data_ptr(), TYPES[pool.dtype], sizes, strides, (STEP, box, 1, 1))


@lru_cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
