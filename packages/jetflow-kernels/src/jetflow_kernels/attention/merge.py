# mypy: ignore-errors
"""Triton: the pieces of split rows put together, always in the same order."""

import triton
import triton.language as tl

from jetflow_kernels.attention.worklist import chunk_lengths, request_at, requests_of

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=["requests"])
def merge_kernel(
    cu_nodes, prefix_len, out, lse, partial, partial_lse,
    cu_stride, prefix_stride, out_row, out_head, out_dim, lse_row, lse_head, requests,
    HEADS: tl.constexpr, DIM: tl.constexpr, REQUESTS: tl.constexpr, BLOCK_S: tl.constexpr,
    WORK: tl.constexpr, SHORTEST: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """All rows of all heads, a share for each program."""
    index, firsts, counts, prefixes = requests_of(
        cu_nodes, cu_stride, prefix_len, prefix_stride, requests, REQUESTS
    )
    chunks = chunk_lengths(prefixes, counts, HEADS, WORK, SHORTEST)
    pieces = tl.where(counts > 0, prefixes // chunks + 1, 0)
    slots = counts * pieces
    # Padding rows come behind the last request and were finished before.
    used = tl.load(cu_nodes + requests * cu_stride)
    if OVERLAPPED:
        # Up to here nothing was read that the kernel before this one writes.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    for place in range(tl.program_id(0), used * HEADS, tl.num_programs(0)):
        row = place // HEADS
        head = place % HEADS
        # Requests without rows end where they begin, so they are counted on the way.
        request = tl.sum(((firsts + counts <= row) & (index < requests)).to(tl.int32), 0)
        first, count, prefix = request_at(cu_nodes, cu_stride, prefix_len, prefix_stride, request)
        split = prefix // chunk_lengths(prefix, count, HEADS, WORK, SHORTEST) + 1
        # Rows in one piece are finished.
        if split > 1:
            slot = tl.sum(tl.where(index < request, slots, 0), 0)
            dims = tl.arange(0, DIM)
            peak = tl.full([1], float("-inf"), tl.float32)
            total = tl.zeros([1], tl.float32)
            mixed = tl.zeros([DIM], tl.float32)
            for start in range(0, split, BLOCK_S):
                piece = start + tl.arange(0, BLOCK_S)
                real = piece < split
                at = (slot + row - first + piece * count).to(tl.int64) * HEADS + head
                weight = tl.load(partial_lse + at, mask=real, other=float("-inf"))
                values = tl.load(
                    partial + at[:, None] * DIM + dims[None, :], mask=real[:, None], other=0.0
                )
                # Every piece but the last has seen keys, so the first maximum is finite.
                raised = tl.maximum(peak, tl.max(weight, 0))
                shrink = tl.exp2(peak - raised)
                weight = tl.exp2(weight - raised)
                total = total * shrink + tl.sum(weight, 0)
                mixed = mixed * shrink + tl.sum(values * weight[:, None], 0)
                peak = raised
            wide_row = tl.zeros([1], tl.int64) + row
            at = wide_row * out_row + head * out_head + dims * out_dim
            tl.store(out + at, (mixed / total).to(out.dtype.element_ty))
            if lse is not None:
                at = wide_row * lse_row + head * lse_head
                tl.store(lse + at, (peak + tl.log2(total)) * LN_2)
