# mypy: ignore-errors
"""Triton: a matrix that streams past a few rows, cut into equal shares of the whole product.

A tile is BLOCK_M columns of the result for BLOCK_N rows: the matrix is the M side of each dot, so
that few rows waste little of a tensor core. All tiles behind one another are one long line of steps
along the inner dimension, and every program takes an equal stretch of that line. Tiles that lie in
several stretches are put together by whoever comes last, always in the order of the stretches.
"""

import triton
import triton.language as tl


@triton.jit
def _ask_for(
    weight, first, step, outs, ins,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """The next AHEAD steps of a tile to the second-level cache; nothing waits for them."""
    _ask_for_half(weight, first, step, outs, ins, BLOCK_M, BLOCK_K, WIDTH, AHEAD)
    if GATED:
        second = weight + outs.to(tl.int64) * ins
        _ask_for_half(second, first, step, outs, ins, BLOCK_M, BLOCK_K, WIDTH, AHEAD)


@triton.jit
def _ask_for_half(
    weight, first, step, outs, ins,
    BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    row = tl.minimum(first + tl.arange(0, BLOCK_M), outs - 1).to(tl.int64)
    # Never past the end of a row: the last one ends where the matrix does.
    column = tl.minimum(step * BLOCK_K, ins - AHEAD * BLOCK_K)
    size = tl.zeros([BLOCK_M], tl.int32) + AHEAD * BLOCK_K * WIDTH
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [(weight + row * ins + column).to(tl.int64), size],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _tile_of(
    box, source, first, column, rows, columns, stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BOXED: tl.constexpr,
):  # fmt: skip
    """A tile [ROWS, COLUMNS] of a matrix, zero outside of it."""
    if BOXED:
        return box.load([first, column])
    else:
        row = first + tl.arange(0, ROWS)
        at = column + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (at < columns)[None, :]
        return tl.load(
            source + row.to(tl.int64)[:, None] * stride + at[None, :], mask=inside, other=0.0
        )


@triton.jit
def _times(weights, values, total, WIDEN: tl.constexpr):
    """A tile of the matrix times a tile of the rows, added."""
    if WIDEN:
        # Triton's interpreter multiplies the raw bits of bfloat16.
        return tl.dot(
            weights.to(tl.float32), tl.trans(values.to(tl.float32)), total, input_precision="ieee"
        )
    else:
        return tl.dot(weights, tl.trans(values), total, input_precision="ieee")


@triton.jit
def _finish(
    total, gated, bias, y, first, row, rows, outs, y_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Bias or gate, one rounding, and the result where it belongs."""
    kind = y.dtype.element_ty
    column = first + tl.arange(0, BLOCK_M)
    place = row + tl.arange(0, BLOCK_N)
    if bias is not None:
        added = tl.load(bias + column, mask=column < outs, other=0.0).to(tl.float32)
        total += added[:, None]
    found = total.to(kind)
    if GATED:
        # Rounded where a product, its SiLU and what it gates would be, one after the other.
        gate = found.to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(kind).to(tl.float32)
        found = (silu * gated.to(kind).to(tl.float32)).to(kind)
    tl.store(
        y + place.to(tl.int64)[None, :] * y_stride + column[:, None],
        found,
        mask=(column < outs)[:, None] & (place < rows)[None, :],
    )


@triton.jit
def _put_together(
    partial, holder, last,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """The sum of what the programs ``holder`` to ``last`` have of a tile, in their order."""
    within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for program in range(holder, last + 1):
        slot = (2 * program + (program == holder).to(tl.int32)).to(tl.int64) * PARTS + PART
        # What others wrote is in the second-level cache.
        total += tl.load(partial + slot * (BLOCK_M * BLOCK_N) + within, cache_modifier=".cg")
    return total


@triton.jit(do_not_specialize=["rows", "outs"])
def linear_kernel(
    weight_box, x_box, weight, x, bias, y, partial, arrived,
    x_stride, y_stride, rows, outs, ins,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr, AHEAD: tl.constexpr, WIDTH: tl.constexpr,
    GATED: tl.constexpr, BOXED: tl.constexpr, OVERLAPPED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """One stretch; ``linear_launch.py`` names the arguments.

    GATED: the matrix has 2 ``outs`` rows, and the result is the SiLU of the first half's product
    times the second half's.
    """
    PARTS: tl.constexpr = 2 if GATED else 1
    program, programs = tl.program_id(0), tl.num_programs(0)
    steps = tl.cdiv(ins, BLOCK_K)
    row_tiles = tl.cdiv(rows, BLOCK_N)
    whole_line = tl.cdiv(outs, BLOCK_M) * row_tiles * steps
    begin = whole_line * program // programs
    end = whole_line * (program + 1) // programs
    if OVERLAPPED:
        # The next kernel may come and ask for its own matrix; it waits before it reads results.
        tl.extra.cuda.gdc_launch_dependents()
    if AHEAD > 0:
        near = begin // steps // row_tiles * BLOCK_M
        _ask_for(weight, near, begin % steps, outs, ins, BLOCK_M, BLOCK_K, WIDTH, AHEAD, GATED)
    if OVERLAPPED:
        # The matrix does not depend on the kernel ahead, the rows do.
        tl.extra.cuda.gdc_wait()
    for tile in range(begin // steps, tl.cdiv(end, steps)):
        first = tile // row_tiles * BLOCK_M
        row = tile % row_tiles * BLOCK_N
        start = tl.maximum(begin - tile * steps, 0)
        stop = tl.minimum(end - tile * steps, steps)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        gated = total
        for step in tl.range(start, stop, num_stages=STAGES):
            at = step * BLOCK_K
            weights = _tile_of(
                weight_box, weight, first, at, outs, ins, ins, BLOCK_M, BLOCK_K, BOXED
            )
            values = _tile_of(x_box, x, row, at, rows, ins, x_stride, BLOCK_N, BLOCK_K, BOXED)
            total = _times(weights, values, total, WIDEN)
            if GATED:
                more = _tile_of(
                    weight_box, weight, outs + first, at, 2 * outs, ins, ins,
                    BLOCK_M, BLOCK_K, BOXED,
                )  # fmt: skip
                gated = _times(more, values, gated, WIDEN)
        if AHEAD > 0:
            # What follows this tile arrives while this one is rounded and written.
            near = (tile + 1) // row_tiles * BLOCK_M
            if (tile + 1) * steps < end:
                _ask_for(weight, near, 0, outs, ins, BLOCK_M, BLOCK_K, WIDTH, AHEAD, GATED)
        if (start == 0) & (stop == steps):
            _finish(
                total, gated, bias, y, first, row, rows, outs, y_stride, BLOCK_M, BLOCK_N, GATED
            )
        else:
            slot = (2 * program + (start == 0).to(tl.int32)).to(tl.int64) * PARTS
            within = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
            part = partial + slot * (BLOCK_M * BLOCK_N) + within
            tl.store(part, total)
            if GATED:
                tl.store(part + BLOCK_M * BLOCK_N, gated)
            # Every thread's part is written before one of them says so.
            tl.debug_barrier()
            # Who holds step s of the line is the last program that begins at or before it.
            holder = ((tile * steps + 1) * programs - 1) // whole_line
            last = ((tile * steps + steps) * programs - 1) // whole_line
            before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
            if before == last - holder:
                total = _put_together(partial, holder, last, BLOCK_M, BLOCK_N, PARTS, 0)
                if GATED:
                    gated = _put_together(partial, holder, last, BLOCK_M, BLOCK_N, PARTS, 1)
                _finish(
                    total, gated, bias, y, first, row, rows, outs, y_stride,
                    BLOCK_M, BLOCK_N, GATED,
                )  # fmt: skip
                # As the next product finds it.
                tl.store(arrived + tile, 0)
