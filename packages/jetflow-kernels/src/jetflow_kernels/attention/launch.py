"""Starts the Triton kernels of tree attention on checked tensors; waits for nothing.

Importing this file imports Triton.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.apart import Apart, launch_apart
from jetflow_kernels.attention.k1 import tree_attention_kernel
from jetflow_kernels.attention.merge import merge_kernel

INTERPRETED = not isinstance(tree_attention_kernel, JITFunction)
"""Whether Triton was imported to interpret its kernels, which then run on CPU tensors."""
_MERGED_AT_ONCE = 8
_MERGE_PROGRAMS = 16


def launch(
    arguments: TreeAttentionArguments,
    *,
    out: Tensor,
    lse: Tensor | None,
    scale: float,
    tiles: plan.Tiles | Apart | None = None,
    programs: int | None = None,
    pieces: plan.Pieces = plan.PIECES,
    overlapped: bool = False,
) -> None:
    """Computes ``out`` and ``lse`` on the current stream; can be captured in a CUDA graph.

    Args:
        arguments: checked by ``check_layout`` and ``check_kernel_limits``.
        out: [T, Hq, D], every row is written.
        lse: [T, Hq] float32, or None.
        scale: factor of the scores.
        tiles: None: ``tiles_for`` the shapes. ``Apart``: in two kernels.
        programs: how many programs share the work; None: as many as the device holds. Changes
            no bits. Of no effect with ``Apart``, like what follows.
        pieces: their lengths.
        overlapped: whether a kernel is placed while the one before it ends, and waits for it by
            itself; of no effect in the interpreter. Changes no bits.

    Raises:
        ValueError: an ``Apart`` does not take the call.
    """
    q, pool = arguments.q, arguments.k_pool
    rows, heads, dim = q.shape
    requests = arguments.prefix_len.shape[0]
    if rows == 0:
        return
    if isinstance(tiles, Apart):
        launch_apart(arguments, out=out, lse=lse, scale=scale, apart=tiles)
        return
    group = heads // pool.shape[2]
    tiles = tiles or plan.tiles_for(rows, requests, group, dim, q.dtype)
    programs = programs or _multiprocessors(q.device) * tiles.programs
    partial, partial_lse = pieces_room(arguments, pieces)
    block = triton.next_power_of_2(max(requests, 1))
    lse_strides = (0, 0) if lse is None else lse.stride()
    tree_attention_kernel[(programs,)](
        *(q, pool, arguments.v_pool, arguments.page_table, arguments.cu_nodes),
        *(arguments.prefix_len, arguments.ancestors, out, lse, partial, partial_lse),
        *q.stride(),
        *pool.stride(),
        *arguments.v_pool.stride(),
        *arguments.page_table.stride(),
        *arguments.cu_nodes.stride(),
        *arguments.prefix_len.stride(),
        *arguments.ancestors.stride(),
        *out.stride(),
        *lse_strides,
        *(scale, rows, requests),
        HEADS=heads,
        GROUP=group,
        DIM=dim,
        PAGE=pool.shape[1],
        WORDS=arguments.ancestors.shape[1],
        REQUESTS=block,
        BLOCK_M=tiles.rows,
        BLOCK_N=tiles.columns,
        WORK=pieces.work,
        SHORTEST=pieces.shortest,
        BY_PAGE=tiles.looks_up(pool.shape[1]),
        ALIKE=pool.stride() == arguments.v_pool.stride(),
        WIDEN=INTERPRETED and q.dtype == torch.bfloat16,
        NEGATIVE=scale < 0,
        OVERLAPPED=overlapped and not INTERPRETED,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
        **_placed(overlapped),
    )
    merge_pieces(arguments, out, lse, partial, partial_lse, programs, pieces, overlapped)


def pieces_room(
    arguments: TreeAttentionArguments, pieces: plan.Pieces = plan.PIECES
) -> tuple[Tensor, Tensor]:
    """Room for the results of pieces, [R, Hq, D] and [R, Hq] float32; R = 0 if none is needed."""
    rows, heads, dim = arguments.q.shape
    requests = arguments.prefix_len.shape[0]
    capacity = arguments.page_table.shape[1] * arguments.k_pool.shape[1]
    room = plan.partial_rows(rows, requests, heads, capacity, pieces)
    partial = arguments.q.new_empty((room, heads, dim), dtype=torch.float32)
    return partial, arguments.q.new_empty((room, heads), dtype=torch.float32)


def merge_pieces(
    arguments: TreeAttentionArguments,
    out: Tensor,
    lse: Tensor | None,
    partial: Tensor,
    partial_lse: Tensor,
    programs: int,
    pieces: plan.Pieces = plan.PIECES,
    overlapped: bool = False,
) -> None:
    """Starts the kernel that puts rows in several pieces together, where there can be any."""
    if not len(partial):
        return
    rows, heads, dim = out.shape
    requests = arguments.prefix_len.shape[0]
    shares = programs if INTERPRETED else programs * _MERGE_PROGRAMS
    merge_kernel[(min(rows * heads, shares),)](
        *(arguments.cu_nodes, arguments.prefix_len, out, lse, partial, partial_lse),
        *arguments.cu_nodes.stride(),
        *arguments.prefix_len.stride(),
        *out.stride(),
        *((0, 0) if lse is None else lse.stride()),
        requests,
        HEADS=heads,
        DIM=dim,
        REQUESTS=triton.next_power_of_2(max(requests, 1)),
        BLOCK_S=_MERGED_AT_ONCE,
        WORK=pieces.work,
        SHORTEST=pieces.shortest,
        OVERLAPPED=overlapped and not INTERPRETED,
        num_warps=1,
        **_placed(overlapped),
    )


def _placed(overlapped: bool) -> dict[str, bool]:
    # Triton knows the option for NVIDIA's cards only.
    return {"launch_pdl": True} if overlapped else {}


def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # The interpreter runs programs one after the other; a few share the work.
    return torch.cuda.get_device_properties(device).multi_processor_count
