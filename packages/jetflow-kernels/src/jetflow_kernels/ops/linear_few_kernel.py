# mypy: ignore-errors
"""Triton: a matrix that streams past one to four rows, by multiplications and sums of threads.

Too few rows for a tensor core. A program has a few rows of the matrix whole, so that nothing is put
together afterwards; loads of the next part are on their way while one is multiplied, and the first
of them before the kernel ahead has ended.
"""

import triton
import triton.language as tl

TOGETHER = tl.constexpr(8)
"""Neighbours that a thread adds up by itself: what it loads at once of 16-bit types."""


@triton.jit
def _part(weight, columns, ins):
    """Some columns of the program's rows of the matrix."""
    return tl.load(
        weight + columns[None, :],
        mask=(columns < ins)[None, :],
        other=0.0,
        eviction_policy="evict_first",
    )


@triton.jit
def _more(total, weights, x, columns, inside, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):
    """The products with some columns of one row, added."""
    values = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
    products = weights.to(tl.float32) * values[None, :]
    return total + tl.sum(tl.reshape(products, [BLOCK_M, BLOCK_K // TOGETHER, TOGETHER]), axis=2)


@triton.jit
def _write(total, gated, bias, y, column, outs, inside, GATED: tl.constexpr):
    """One row: bias or gate, one rounding."""
    kind = y.dtype.element_ty
    found = tl.sum(total, axis=1)
    if bias is not None:
        found += tl.load(bias + column, mask=column < outs, other=0.0).to(tl.float32)
    found = found.to(kind)
    if GATED:
        gate = found.to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
        found = (silu * tl.sum(gated, axis=1).to(kind).to(tl.float32)).to(kind)
    tl.store(y + column, found, mask=(column < outs) & inside)


@triton.jit(do_not_specialize=["rows", "outs"])
def linear_few_kernel(
    weight, x, bias, y, x_stride, y_stride, rows, outs, ins,
    ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    GATED: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """BLOCK_M columns of the result for all rows, ROWS at most (1, 2 or 4)."""
    column = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    part = tl.arange(0, BLOCK_K)
    first = weight + tl.minimum(column, outs - 1).to(tl.int64)[:, None] * ins
    weights = _part(first, part, ins)
    second = first
    gating = weights
    if GATED:
        second = first + outs.to(tl.int64) * ins
        gating = _part(second, part, ins)
    if OVERLAPPED:
        # The next kernel may come and load of its own matrix; it waits before it reads results.
        tl.extra.cuda.gdc_launch_dependents()
        # The matrix does not depend on the kernel ahead, the rows do.
        tl.extra.cuda.gdc_wait()
    # Four names, since a loop cannot carry a list; those past ROWS are never used.
    a0 = tl.zeros([BLOCK_M, BLOCK_K // TOGETHER], tl.float32)
    a1, a2, a3, b0, b1, b2, b3 = a0, a0, a0, a0, a0, a0, a0
    for start in range(0, ins, BLOCK_K):
        columns = start + part
        next_weights = _part(first, columns + BLOCK_K, ins)
        next_gating = next_weights
        if GATED:
            next_gating = _part(second, columns + BLOCK_K, ins)
        inside = columns < ins
        a0 = _more(a0, weights, x, columns, inside, BLOCK_M, BLOCK_K)
        if GATED:
            b0 = _more(b0, gating, x, columns, inside, BLOCK_M, BLOCK_K)
        if ROWS > 1:
            x1 = x + x_stride
            a1 = _more(a1, weights, x1, columns, inside & (rows > 1), BLOCK_M, BLOCK_K)
            if GATED:
                b1 = _more(b1, gating, x1, columns, inside & (rows > 1), BLOCK_M, BLOCK_K)
        if ROWS > 2:
            x2, x3 = x + 2 * x_stride, x + 3 * x_stride
            a2 = _more(a2, weights, x2, columns, inside & (rows > 2), BLOCK_M, BLOCK_K)
            a3 = _more(a3, weights, x3, columns, inside & (rows > 3), BLOCK_M, BLOCK_K)
            if GATED:
                b2 = _more(b2, gating, x2, columns, inside & (rows > 2), BLOCK_M, BLOCK_K)
                b3 = _more(b3, gating, x3, columns, inside & (rows > 3), BLOCK_M, BLOCK_K)
        weights, gating = next_weights, next_gating
    _write(a0, b0, bias, y, column, outs, rows > 0, GATED)
    if ROWS > 1:
        _write(a1, b1, bias, y + y_stride, column, outs, rows > 1, GATED)
    if ROWS > 2:
        _write(a2, b2, bias, y + 2 * y_stride, column, outs, rows > 2, GATED)
        _write(a3, b3, bias, y + 3 * y_stride, column, outs, rows > 3, GATED)
