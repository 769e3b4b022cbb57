"""Starts tree attention in two kernels: whole tiles of the prefix, then the rest and all together.

Nothing chooses this way by itself yet: it is here to be measured against ``launch.py``, whose
``launch`` takes it in place of ``Tiles``. Importing this file imports Triton.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.prefix import prefix_kernel
from jetflow_kernels.attention.tail import tail_kernel

INTERPRETED = not isinstance(prefix_kernel, JITFunction)
"""Whether Triton was imported to interpret its kernels, which then run on CPU tensors."""
MULTIPROCESSORS = 132
"""Of an H200: how many programs are wanted; a constant, so that bits do not depend on the card."""
_REACH = plan.MAX_WORDS * plan.WORD_BITS
"""Rows that 32-bit offsets within a tree are counted over."""
_UNROLLED = 4
"""Pieces that a tile of the second kernel has on their way at once."""
_ALIGNMENT = 16
"""Bytes that addresses and strides of boxes are multiples of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """The sizes that the two kernels are compiled for, in place of ``plan.Tiles``."""

    rows: int
    """Packed rows of a tile over the prefix; 128 if ``specialized``."""
    columns: int
    """Keys of such a tile; pages are multiples of it."""
    warps: int
    stages: int
    programs: int
    """Programs of the first kernel that a multiprocessor holds."""
    specialized: bool
    """Whether bulk copies have warps of their own: the 4 ``warps`` then become 12, of which 8
    compute. Of no effect in the interpreter."""
    overlapped: bool = False
    """Whether a kernel is placed while the one before it ends, and waits for it by itself."""
    shortest: int = 128
    """Prefix rows of a piece at least; a multiple of ``columns``."""
    most: int = plan.MAX_SPLITS
    """Pieces of a prefix at most."""
    tail_rows: int = 32
    """Packed rows of a tile over the rest: small ones, as there is little for each to do."""
    tail_columns: int = 64
    tail_warps: int = 4
    tail_stages: int = 2


@dataclass(frozen=True, slots=True)
class Flat:
    """A pool as one matrix: a slot is at ``page * page_rows + head * head_rows + slot``."""

    page_rows: int
    head_rows: int
    head_columns: int
    """Columns between two heads."""
    rows: int
    columns: int


def flat(pool: Tensor) -> Flat | None:
    """The matrix that a pool [pages, page, Hkv, D] is part of, or None if it is part of none."""
    pages, page, heads, dim = pool.shape
    of_page, of_slot, of_head, of_dim = pool.stride()
    width = pool.element_size()
    if of_dim != 1 or of_slot < dim or of_page % of_slot or pool.data_ptr() % _ALIGNMENT:
        return None
    if of_slot * width % _ALIGNMENT:
        return None
    if (heads - 1) * of_head + dim <= of_slot:
        head_rows, head_columns = 0, of_head
    elif of_head % of_slot == 0:
        head_rows, head_columns = of_head // of_slot, 0
    else:
        return None
    rows = (pages - 1) * (of_page // of_slot) + (heads - 1) * head_rows + page
    columns = (heads - 1) * head_columns + dim
    return Flat(of_page // of_slot, head_rows, head_columns, rows, columns)


def why_not(arguments: TreeAttentionArguments, apart: Apart) -> str | None:
    """Why a call cannot be made this way; None: it can."""
    q, pool = arguments.q, arguments.k_pool
    page, dim = pool.shape[1], q.shape[2]
    if q.dtype == torch.float32 or dim == 256:
        return f"boxes are for 16 bits and head dims 64 and 128, not for {q.dtype} and {dim}"
    if not len(arguments.prefix_len):
        return "there are no requests"
    if page % apart.columns:
        return f"pages of {page} rows are no multiple of {apart.columns}"
    if flat(pool) is None or flat(pool) != flat(arguments.v_pool):
        return f"no boxes describe pools of strides {pool.stride()}, {arguments.v_pool.stride()}"
    for name, of_row in (("q", q.stride(0)), ("ancestors", arguments.ancestors.stride(0))):
        if of_row * _REACH >= 2**31:
            return f"{name} has rows {of_row} apart, so that offsets in a tree exceed 32 bits"
    if apart.specialized and (apart.rows, apart.warps) != (128, 4):
        return f"warps for copies want 128 rows and 4 warps, not {apart.rows} and {apart.warps}"
    return None


def pieces_of(arguments: TreeAttentionArguments, apart: Apart) -> int:
    """Pieces that each prefix is cut into at most, by the shapes of the call alone."""
    q, pool = arguments.q, arguments.k_pool
    requests, group = len(arguments.prefix_len), q.shape[1] // pool.shape[2]
    # Trees of equal size are meant: what other trees need more must not lengthen these pieces.
    each = -(-q.shape[0] // requests) * group
    tiles = requests * -(-each // apart.rows) * pool.shape[2]
    capacity = arguments.page_table.shape[1] * pool.shape[1]
    most = min(apart.most, -(-capacity // apart.shortest))
    return max(1, min(most, MULTIPROCESSORS * apart.programs // tiles))


def launch_apart(
    arguments: TreeAttentionArguments,
    *,
    out: Tensor,
    lse: Tensor | None,
    scale: float,
    apart: Apart,
) -> None:
    """Computes ``out`` and ``lse`` on the current stream; can be captured in a CUDA graph.

    Args:
        arguments: checked by ``check_layout`` and ``check_kernel_limits``.
        out: [T, Hq, D], every row is written.
        lse: [T, Hq] float32, or None.
        scale: factor of the scores.
        apart: sizes.

    Raises:
        ValueError: the call cannot be made this way, ``why_not`` says why.
    """
    reason = why_not(arguments, apart)
    if reason is not None:
        raise ValueError(f"tree attention in two kernels does not take this call: {reason}")
    q = arguments.q
    pieces = pieces_of(arguments, apart)
    partial = q.new_empty((pieces, *q.shape), dtype=torch.float32)
    partial_lse = q.new_empty(partial.shape[:3], dtype=torch.float32)
    _over_prefixes(arguments, partial, partial_lse, scale, apart)
    _over_tails(arguments, out, lse, partial, partial_lse, scale, apart)


def _box(pool: Tensor, columns: int) -> TensorDescriptor:
    matrix = flat(pool)
    assert matrix is not None
    shape, strides = [matrix.rows, matrix.columns], [pool.stride(1), 1]
    return TensorDescriptor(pool, shape, strides, [columns, pool.shape[3]])


def _over_prefixes(
    arguments: TreeAttentionArguments,
    partial: Tensor,
    partial_lse: Tensor,
    scale: float,
    apart: Apart,
) -> None:
    q, pool = arguments.q, arguments.k_pool
    (rows, heads, dim), requests = q.shape, len(arguments.prefix_len)
    group = heads // pool.shape[2]
    matrix = flat(pool)
    assert matrix is not None
    grid = (plan.most_tiles(rows, requests, group, apart.rows), pool.shape[2], len(partial))
    prefix_kernel[grid](
        _box(pool, apart.columns),
        _box(arguments.v_pool, apart.columns),
        *(q, arguments.page_table, arguments.cu_nodes, arguments.prefix_len, partial, partial_lse),
        *q.stride(),
        *(matrix.page_rows, matrix.head_rows, matrix.head_columns),
        *arguments.page_table.stride(),
        *arguments.cu_nodes.stride(),
        *arguments.prefix_len.stride(),
        *(scale, rows, requests, len(partial), apart.shortest),
        HEADS=heads,
        GROUP=group,
        DIM=dim,
        PAGE=pool.shape[1],
        REQUESTS=triton.next_power_of_2(requests),
        BLOCK_M=apart.rows,
        BLOCK_N=apart.columns,
        STAGES=apart.stages,
        SPECIALIZED=apart.specialized and not INTERPRETED,
        OVERLAPPED=apart.overlapped and not INTERPRETED,
        WIDEN=INTERPRETED and q.dtype == torch.bfloat16,
        NEGATIVE=scale < 0,
        num_warps=apart.warps,
        num_stages=apart.stages,
        launch_pdl=apart.overlapped,
    )


def _over_tails(
    arguments: TreeAttentionArguments,
    out: Tensor,
    lse: Tensor | None,
    partial: Tensor,
    partial_lse: Tensor,
    scale: float,
    apart: Apart,
) -> None:
    q, pool = arguments.q, arguments.k_pool
    (rows, heads, dim), requests = q.shape, len(arguments.prefix_len)
    group = heads // pool.shape[2]
    grid = (plan.most_tiles(rows, requests, group, apart.tail_rows), pool.shape[2])
    tail_kernel[grid](
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
        *((0, 0) if lse is None else lse.stride()),
        *(scale, rows, requests, len(partial), apart.shortest, arguments.ancestors.shape[1]),
        HEADS=heads,
        GROUP=group,
        DIM=dim,
        PAGE=pool.shape[1],
        REQUESTS=triton.next_power_of_2(requests),
        BLOCK_P=apart.columns,
        BLOCK_M=apart.tail_rows,
        BLOCK_N=apart.tail_columns,
        UNROLLED=_UNROLLED,
        OVERLAPPED=apart.overlapped and not INTERPRETED,
        ALIKE=pool.stride() == arguments.v_pool.stride(),
        WIDEN=INTERPRETED and q.dtype == torch.bfloat16,
        NEGATIVE=scale < 0,
        num_warps=apart.tail_warps,
        num_stages=apart.tail_stages,
        launch_pdl=apart.overlapped,
    )
