"""Starts the sm_90a kernel of tree attention on checked tensors; waits for nothing.

The programs of a cluster share a tile and put their results together. Where ``plan.cluster_size``
prefers pieces by length, the Triton version's merge does that. Importing this file imports Triton.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2 import build, driver
from jetflow_kernels.attention.k2.configurations import Configuration, configuration_for
from jetflow_kernels.attention.k2.parameters import (
    Params,
    box_rows,
    params_of,
    pool_map,
    query_map,
    query_nodes,
    set_scale,
)
from jetflow_kernels.attention.launch import merge_pieces, pieces_room


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
    swift: bool = False,
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
        swift: whether the kernel with the shorter start and end runs: see ``Configuration``, which
            changes no bits. Not run on a card yet.

    Raises:
        BuildError: the kernel could not be built.
        DriverError: the CUDA driver refused.
    """
    if not len(arguments.q):
        return
    call = prepare(
        *(arguments,), out=out, lse=lse, scale=scale, tiles=tiles, programs=programs,
        cluster=cluster, swift=swift,
    )  # fmt: skip
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
    """For the copy engine: of the pools, and of the queries where the variant is swift."""
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
    swift: bool = False,
) -> Call:
    """What ``launch`` starts for these arguments, which are its own; there is at least one row.

    Raises:
        DriverError: the CUDA driver refused.
    """
    variant = configuration_for(arguments, tiles, swift=swift)
    device = arguments.q.get_device()
    if cluster is None:
        cluster = _cluster_size(arguments, variant)
    programs = programs or _multiprocessors(device) * variant.programs
    if cluster != plan.BY_LENGTH:
        programs = _in_clusters(arguments, variant, programs, cluster)
    partials = pieces_room(arguments) if cluster == plan.BY_LENGTH else None
    box = box_rows(arguments.k_pool.shape[1])
    parameters = params_of(arguments, out, lse, partials, box, cluster)
    set_scale(parameters, scale)
    maps: tuple[ctypes.Array[ctypes.c_char], ...] = (
        pool_map(arguments.k_pool, box),
        pool_map(arguments.v_pool, box),
    )
    if swift:
        parameters.q_nodes = query_nodes(parameters)
        maps += (query_map(arguments.q, parameters.group, parameters.q_nodes),)
    return Call(
        variant=variant,
        programs=programs,
        cluster=cluster,
        parameters=parameters,
        maps=maps,
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


@lru_cache
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count
