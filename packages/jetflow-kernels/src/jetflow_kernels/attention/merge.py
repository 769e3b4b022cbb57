# mypy: ignore-errors
"""Triton: the pieces of split rows put together, always in the same order."""

import triton
import triton.language as tl

from jetflow_kernels.attention.worklist import chunk_lengths, pick, requests_of

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["requests"])
def merge_kernel(
    cu_nodes, prefix_len, out, lse, partial, partial_lse,
    cu_stride, prefix_stride, out_row, out_head, out_dim, lse_row, lse_head, requests,
    HEADS: tl.constexpr, DIM: tl.constexpr, REQUESTS: tl.constexpr,
    BLOCK_S: tl.constexpr,
):  # fmt: skip
    """One row of one head for each program of the grid (rows, heads)."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    index, firsts, counts, prefixes = requests_of(
        cu_nodes, cu_stride, prefix_len, prefix_stride, requests, REQUESTS
    )
    chunks = chunk_lengths(prefixes, counts, HEADS)
    pieces = tl.where(counts > 0, prefixes // chunks + 1, 0)
    mine = (firsts <= row) & (row < firsts + counts)
    request = tl.max(tl.where(mine, index, -1), 0)
    split = pick(pieces, index, request)
    # Rows in one piece are finished, and padding rows (request -1) have none.
    if split > 1:
        count = pick(counts, index, request)
        slot = tl.sum(tl.where(index < request, counts * pieces, 0), 0)
        node = row - pick(firsts, index, request)
        base = (slot + node).to(tl.int64) * HEADS + head
        dims = tl.arange(0, DIM)
        peak = float("-inf")
        total = 0.0
        mixed = tl.zeros([DIM], tl.float32)
        for start in range(0, split, BLOCK_S):
            piece = start + tl.arange(0, BLOCK_S)
            real = piece < split
            at = base + piece.to(tl.int64) * count * HEADS
            weight = tl.load(partial_lse + at, mask=real, other=float("-inf"))
            values = tl.load(
                partial + at[:, None] * DIM + dims[None, :], mask=real[:, None], other=0.0
            )
            raised = tl.maximum(peak, tl.max(weight, 0))
            floor = tl.where(raised == float("-inf"), 0.0, raised)
            shrink = tl.exp2(peak - floor)
            weight = tl.exp2(weight - floor)
            total = total * shrink + tl.sum(weight, 0)
            mixed = mixed * shrink + tl.sum(values * weight[:, None], 0)
            peak = raised
        # A split row has seen the prefix, so its total is not 0.
        at = out + row.to(tl.int64) * out_row + head * out_head + dims * out_dim
        tl.store(at, (mixed / total).to(out.dtype.element_ty))
        if lse is not None:
            where = lse + row.to(tl.int64) * lse_row + head * lse_head
            tl.store(where, (peak + tl.log2(total)) * LN_2)
