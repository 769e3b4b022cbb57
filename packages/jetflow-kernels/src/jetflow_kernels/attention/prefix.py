# mypy: ignore-errors
"""Triton: tree attention over whole tiles of the prefix alone, by the bulk copies of Hopper.

Nothing is masked here, so keys and values come as whole boxes of their pools, and the compiler can
give the copies to warps of their own. ``tail.py`` adds the rest of the prefix and the tree.
"""

import triton
import triton.language as tl

from jetflow_kernels.attention.k1 import LOG2_E, _mix, _turned, _weigh
from jetflow_kernels.attention.worklist import request_at


@triton.jit
def request_of_tile(
    tile, cu_nodes, cu_stride, requests,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, REQUESTS: tl.constexpr,
):  # fmt: skip
    """The request of a tile, and that request's first tile.

    A request begins where those before it would end if the last tile of each were as empty as can
    be, so that no sum over requests is wanted; the tiles between have no rows. ``most_tiles`` of
    ``plan.py`` is where the last one ends.
    """
    # The largest power of two in GROUP: what its multiples leave of a tile is no more than this.
    SLACK: tl.constexpr = BLOCK_M - (GROUP & -GROUP)
    request = 0
    if REQUESTS > 1:
        index = tl.arange(0, REQUESTS)
        real = index < requests
        first = tl.load(cu_nodes + index * cu_stride, mask=real, other=0)
        begins = (first * GROUP + index * SLACK) // BLOCK_M
        request = tl.sum(((begins <= tile) & real).to(tl.int32), 0) - 1
    first = tl.load(cu_nodes + request * cu_stride)
    return request, (first * GROUP + request * SLACK) // BLOCK_M


@triton.jit
def cut_evenly(prefix, pieces, shortest, BLOCK: tl.constexpr):
    """Rows of the prefix that fill whole tiles, and the length of each of its pieces."""
    whole = prefix // BLOCK * BLOCK
    even = (whole + pieces * BLOCK - 1) // (pieces * BLOCK) * BLOCK
    return whole, tl.maximum(even, shortest)


@triton.jit(do_not_specialize=["rows", "requests", "pieces", "shortest"])
def prefix_kernel(
    k_box, v_box, q, page_table, cu_nodes, prefix_len, partial, partial_lse,
    q_row, q_head, q_dim, page_rows, head_rows, head_columns,
    table_request, table_entry, cu_stride, prefix_stride,
    scale, rows, requests, pieces, shortest,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    REQUESTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
    SPECIALIZED: tl.constexpr, OVERLAPPED: tl.constexpr,
    WIDEN: tl.constexpr, NEGATIVE: tl.constexpr,
):  # fmt: skip
    """One tile of rows over one piece; ``apart.py`` names the arguments.

    SPECIALIZED: copies have warps of their own; the compiler takes no ``else`` around their loop.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    piece = tl.program_id(2)
    if OVERLAPPED:
        # In this order: who starts once all programs have come here may read what was before.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    request, begins = request_of_tile(tile, cu_nodes, cu_stride, requests, GROUP, BLOCK_M, REQUESTS)
    first, count, prefix = request_at(cu_nodes, cu_stride, prefix_len, prefix_stride, request)
    whole, chunk = cut_evenly(prefix, pieces, shortest, BLOCK_N)
    begin = piece * chunk
    end = tl.minimum(begin + chunk, whole)
    packed = (tile - begins) * BLOCK_M + tl.arange(0, BLOCK_M)
    node = packed // GROUP
    real = (node < count) & (begin < end)
    q_heads = head * GROUP + packed % GROUP
    dims = tl.arange(0, DIM)
    # Within one request 32 bits are enough.
    of_tile = (node * q_row + q_heads * q_head)[:, None] + dims[None, :] * q_dim
    of_request = q + first.to(tl.int64) * q_row
    if SPECIALIZED:
        # The compiler would give every load it knows to the warps of the copies, and cannot hand
        # this one over. There is no mask: rows that are not the request's are some other row.
        of_tile = tl.where(real[:, None], of_tile, dims[None, :] * q_dim)
        of_request = q + tl.minimum(first, rows - 1).to(tl.int64) * q_row
        bits = tl.inline_asm_elementwise(
            "ld.global.b16 $0, [$1];", "=h,l", [(of_request + of_tile).to(tl.int64)],
            dtype=tl.int16, is_pure=False, pack=1,
        )  # fmt: skip
        q_tile = bits.to(q.dtype.element_ty, bitcast=True)
    if not SPECIALIZED:
        q_tile = tl.load(of_request + of_tile, mask=real[:, None], other=0.0)
    factor = scale * LOG2_E
    if NEGATIVE:
        q_tile, factor = _turned(q_tile), -factor

    table = page_table + request * table_request
    above = head * head_rows
    left = head * head_columns
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, DIM], tl.float32)
    for start in tl.range(begin, end, BLOCK_N, warp_specialize=SPECIALIZED, num_stages=STAGES):
        at = tl.load(table + start // PAGE * table_entry) * page_rows + above + start % PAGE
        k = k_box.load([at, left])
        weights, shrink, peak, total = _weigh(q_tile, k, peak, total, factor, real, False, WIDEN)
        # Here, and not beside k: warps of their own wait for a copy where it is written.
        v = v_box.load([at, left])
        mixed = _mix(weights, v, mixed, shrink, WIDEN)

    before = (piece * rows + first).to(tl.int64) * HEADS
    place = node * HEADS + q_heads
    # A piece without tiles is not stored.
    total = tl.where(begin < end, total, 1.0)
    tl.store(
        partial + before * DIM + (place[:, None] * DIM + dims[None, :]),
        mixed / total[:, None],
        mask=real[:, None],
    )
    tl.store(partial_lse + before + place, peak + tl.log2(total), mask=real)
