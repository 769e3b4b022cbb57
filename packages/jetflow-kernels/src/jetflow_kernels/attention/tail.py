# mypy: ignore-errors
"""Triton: what ``prefix.py`` leaves of tree attention, and all of it put together.

A tile of rows goes over the remainder of the prefix and the tree, and then adds the pieces of the
prefix, always in the same order. Only the latter waits for ``prefix.py``.
"""

import triton
import triton.language as tl

from jetflow_kernels.attention.k1 import LN_2, LOG2_E, _fold, _slots, _turned
from jetflow_kernels.attention.prefix import cut_evenly, request_of_tile
from jetflow_kernels.attention.worklist import request_at


@triton.jit
def _add_piece(mixed, total, peak, piece_mixed, piece_sum):
    """One piece more; its results are divided by their sum already, whose logarithm is given."""
    raised = tl.maximum(peak, piece_sum)
    # A row that has seen nothing yet and a piece that is not there: inf - inf would be NaN.
    base = tl.where(raised == float("-inf"), 0.0, raised)
    shrink = tl.exp2(peak - base)
    weight = tl.exp2(piece_sum - base)
    mixed = mixed * shrink[:, None] + piece_mixed * weight[:, None]
    return mixed, total * shrink + weight, raised


@triton.jit(do_not_specialize=["rows", "requests", "pieces", "shortest", "words"])
def tail_kernel(
    q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors, out, lse, partial, partial_lse,
    q_row, q_head, q_dim, k_page, k_slot, k_head, k_dim, v_page, v_slot, v_head, v_dim,
    table_request, table_entry, cu_stride, prefix_stride, words_row, words_word,
    out_row, out_head, out_dim, lse_row, lse_head,
    scale, rows, requests, pieces, shortest, words,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    REQUESTS: tl.constexpr, BLOCK_P: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, UNROLLED: tl.constexpr,
    OVERLAPPED: tl.constexpr, ALIKE: tl.constexpr, WIDEN: tl.constexpr, NEGATIVE: tl.constexpr,
):  # fmt: skip
    """One tile of rows of one key head; ``apart.py`` names the arguments.

    BLOCK_P: keys of a tile of ``prefix.py``, a multiple of BLOCK_N, which divides 64.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    if OVERLAPPED:
        tl.extra.cuda.gdc_launch_dependents()
    request, begins = request_of_tile(tile, cu_nodes, cu_stride, requests, GROUP, BLOCK_M, REQUESTS)
    first, count, prefix = request_at(cu_nodes, cu_stride, prefix_len, prefix_stride, request)
    whole, chunk = cut_evenly(prefix, pieces, shortest, BLOCK_P)
    packed = (tile - begins) * BLOCK_M + tl.arange(0, BLOCK_M)
    node = packed // GROUP
    real = node < count
    # Within one request 32 bits are enough; what needs more is one number for the whole tile.
    row = first.to(tl.int64)
    q_heads = head * GROUP + packed % GROUP
    dims = tl.arange(0, DIM)
    columns = tl.arange(0, BLOCK_N)
    q_tile = tl.load(
        q + row * q_row + (node * q_row + q_heads * q_head)[:, None] + dims[None, :] * q_dim,
        mask=real[:, None],
        other=0.0,
    )
    factor = scale * LOG2_E
    if NEGATIVE:
        q_tile, factor = _turned(q_tile), -factor

    k_base = k_pool + head.to(tl.int64) * k_head
    v_base = v_pool + head.to(tl.int64) * v_head
    table = page_table + request * table_request
    words_of = ancestors + row * words_row + node * words_row
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, DIM], tl.float32)
    tree = tl.minimum(count, words * 64)
    rest = (prefix - whole + BLOCK_N - 1) // BLOCK_N
    busy = (tile - begins) * BLOCK_M < count * GROUP
    tiles = tl.where(busy, (tree + BLOCK_N - 1) // BLOCK_N, -rest)
    # Tiles below 0 are the remainder of the prefix; from 0 on, the tree.
    for at_tile in range(-rest, tiles):
        in_tree = at_tile >= 0
        column = at_tile * BLOCK_N + columns
        at = tl.where(in_tree, prefix, whole + rest * BLOCK_N) + column
        live = at < tl.where(in_tree, prefix + tree, prefix)
        k_at, v_at = _slots(
            table, table_entry, 0, at, live, dims, k_page, k_slot, k_dim,
            v_page, v_slot, v_dim, 0, PAGE, False, ALIKE,
        )  # fmt: skip
        # What lies past the end is not read: 0 * NaN would reach every row.
        k = tl.load(k_base + k_at, mask=live[:, None], other=0.0)
        v = tl.load(v_base + v_at, mask=live[:, None], other=0.0)
        word = tl.load(
            words_of + at_tile * BLOCK_N // 64 * words_word,
            mask=real & in_tree,
            other=-1,
        )
        bit = tl.where(in_tree, column % 64, columns)
        half = tl.where(
            (bit < 32)[None, :], word.to(tl.int32)[:, None], (word >> 32).to(tl.int32)[:, None]
        )
        seen = ((half >> (bit % 32)[None, :]) & 1) != 0
        peak, total, mixed = _fold(
            q_tile, k, v, peak, total, mixed, factor, seen & live[None, :], True, WIDEN
        )

    if OVERLAPPED:
        tl.extra.cuda.gdc_wait()
    mine = tl.where(busy, (whole + chunk - 1) // chunk, 0)
    place = node * HEADS + q_heads
    # Few pieces are unrolled, so that all are on their way at once; more would fill the registers.
    for some in range(0, mine, UNROLLED):
        for one in tl.static_range(UNROLLED):
            there = real & (some + one < mine)
            before = ((some + one) * rows + row) * HEADS
            piece_sum = tl.load(partial_lse + before + place, mask=there, other=float("-inf"))
            piece_mixed = tl.load(
                partial + before * DIM + (place[:, None] * DIM + dims[None, :]),
                mask=there[:, None],
                other=0.0,
            )
            mixed, total, peak = _add_piece(mixed, total, peak, piece_mixed, piece_sum)

    empty = total == 0.0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    tl.store(
        out
        + row * out_row
        + (node * out_row + q_heads * out_head)[:, None]
        + dims[None, :] * out_dim,
        mixed.to(out.dtype.element_ty),
        mask=real[:, None],
    )
    if lse is not None:
        log2_sum = tl.where(empty, float("-inf"), peak + tl.log2(tl.where(empty, 1.0, total)))
        tl.store(
            lse + row * lse_row + (node * lse_row + q_heads * lse_head), log2_sum * LN_2, mask=real
        )

    # Padding rows: zeros, seen by nobody.
    used = tl.load(cu_nodes + requests * cu_stride)
    nothing = tl.zeros([DIM], tl.float32).to(out.dtype.element_ty)
    for pad in range(used + tile, rows, tl.num_programs(0)):
        pad_row = tl.zeros([1], tl.int64) + pad
        for member in range(GROUP):
            pad_head = head * GROUP + member
            tl.store(out + (pad_row * out_row + pad_head * out_head + dims * out_dim), nothing)
            if lse is not None:
                at = pad_row * lse_row + pad_head * lse_head
                tl.store(lse + at, tl.full([1], float("-inf"), tl.float32))
