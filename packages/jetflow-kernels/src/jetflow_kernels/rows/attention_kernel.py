# mypy: ignore-errors
"""Triton: plain decoding, one program for each row and key head, over the columns the row sees.

Keys and values are read once, so memory sets the time: a program keeps few tiles in flight and
leaves room for many programs on a multiprocessor. A row is never split, the rows fill the device.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_attention_kernel(
    q, keys, values, lengths, out,
    q_row, q_head, q_dim, k_row, k_column, k_head, k_dim, v_row, v_column, v_head, v_dim,
    lengths_row, out_row, out_head, out_dim,
    scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    ALIKE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The GROUP query heads of one key head of one row; ``op.py`` names the arguments."""
    # Key heads innermost: those of a row lie side by side in memory.
    row = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    head = tl.program_id(0) % KV_HEADS
    length = tl.load(lengths + row * lengths_row)

    place = tl.arange(0, BLOCK_M)
    columns = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, BLOCK_D)
    real = (place < GROUP)[:, None]
    if BLOCK_D != DIM:
        real &= (dims < DIM)[None, :]
    q_heads = head * GROUP + place
    q_at = q_heads[:, None] * q_head + dims[None, :] * q_dim
    q_tile = tl.load(q + row * q_row + q_at, mask=real, other=0.0)
    factor = scale * LOG2_E

    k_base = keys + row * k_row + head.to(tl.int64) * k_head
    v_base = values + row * v_row + head.to(tl.int64) * v_head
    k_at = columns[:, None] * k_column + dims[None, :] * k_dim
    if ALIKE:
        # Equal strides: one computation serves both caches.
        v_at = k_at
    else:
        v_at = columns[:, None] * v_column + dims[None, :] * v_dim
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    mixed = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, length, BLOCK_N):
        seen = columns < length - start
        live = seen[:, None]
        if BLOCK_D != DIM:
            live &= (dims < DIM)[None, :]
        step = tl.zeros([], tl.int64) + start
        # What lies past the end is not read: 0 * NaN would reach the row.
        k = tl.load(k_base + step * k_column + k_at, mask=live, other=0.0)
        v = tl.load(v_base + step * v_column + v_at, mask=live, other=0.0)
        if WIDEN:
            # Triton's interpreter multiplies the raw bits of bfloat16.
            wide = tl.trans(k.to(tl.float32))
            scores = tl.dot(q_tile.to(tl.float32), wide, input_precision="ieee")
        else:
            scores = tl.dot(q_tile, tl.trans(k), input_precision="ieee")
        # Every tile has a column that is seen, so the peak is finite from the first one on.
        scores = tl.where(seen[None, :], scores * factor, float("-inf"))
        raised = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - raised[:, None])
        shrink = tl.exp2(peak - raised)
        total = total * shrink + tl.sum(weights, 1)
        mixed = mixed * shrink[:, None]
        weights = weights.to(v.dtype)
        if WIDEN:
            weights, v = weights.to(tl.float32), v.to(tl.float32)
        mixed = tl.dot(weights, v, mixed, input_precision="ieee")
        peak = raised
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    out_at = q_heads[:, None] * out_head + dims[None, :] * out_dim
    tl.store(out + row * out_row + out_at, mixed.to(out.dtype.element_ty), mask=real)
