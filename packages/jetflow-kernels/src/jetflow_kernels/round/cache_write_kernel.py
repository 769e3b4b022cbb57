"""Triton: one row of a fused projection, normed, turned by its position, written where it goes."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_halves(
    base: tl.tensor, head_stride: tl.tensor, head: tl.tensor, inside: tl.tensor, DIM: tl.constexpr
) -> tl.tensor:
    """The first and the second halves of some heads."""
    column = tl.arange(0, inside.shape[1])
    places = base + (head[:, None] * head_stride + column[None, :])
    first = tl.load(places, mask=inside, other=0.0)
    return first, tl.load(places + DIM // 2, mask=inside, other=0.0)


@triton.jit
def store_halves(
    base: tl.tensor,
    head_stride: tl.tensor,
    head: tl.tensor,
    inside: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    DIM: tl.constexpr,
) -> tl.tensor:
    """Writes the first and the second halves of some heads."""
    column = tl.arange(0, inside.shape[1])
    places = base + (head.to(tl.int64)[:, None] * head_stride + column[None, :])
    tl.store(places, first, mask=inside)
    tl.store(places + DIM // 2, second, mask=inside)


@triton.jit
def normed(
    first: tl.tensor, second: tl.tensor, weight: tl.tensor, eps: tl.tensor, DIM: tl.constexpr
) -> tl.tensor:
    """Heads over their root mean square in float32, rounded, times the weight, rounded."""
    kind = first.dtype
    column = tl.arange(0, first.shape[1])
    exists = column < DIM // 2
    weight_first = tl.load(weight + column, mask=exists, other=0.0).to(tl.float32)
    weight_second = tl.load(weight + DIM // 2 + column, mask=exists, other=0.0).to(tl.float32)
    a, b = first.to(tl.float32), second.to(tl.float32)
    scale = tl.rsqrt(tl.sum(a * a + b * b, axis=1) / DIM + eps)
    a = (a * scale[:, None]).to(kind).to(tl.float32)
    b = (b * scale[:, None]).to(kind).to(tl.float32)
    return (a * weight_first[None, :]).to(kind), (b * weight_second[None, :]).to(kind)


@triton.jit
def turned(first: tl.tensor, second: tl.tensor, cos: tl.tensor, sin: tl.tensor) -> tl.tensor:
    """Heads turned by the angles of their position, every product and sum rounded.

    Products of 16-bit numbers are rounded through float32, which gives the same bits as rounding
    them once.
    """
    kind = first.dtype
    a, b = first.to(tl.float32), second.to(tl.float32)
    cos, sin = cos.to(kind).to(tl.float32)[None, :], sin.to(kind).to(tl.float32)[None, :]
    a_cos, b_sin = (a * cos).to(kind).to(tl.float32), (b * sin).to(kind).to(tl.float32)
    b_cos, a_sin = (b * cos).to(kind).to(tl.float32), (a * sin).to(kind).to(tl.float32)
    return (a_cos - b_sin).to(kind), (b_cos + a_sin).to(kind)


@triton.jit
def angles(
    cos: tl.tensor,
    sin: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    position: tl.tensor,
    table_rows: tl.tensor,
    HALF: tl.constexpr,
    DIM: tl.constexpr,
) -> tl.tensor:
    """The table's line of a position; NaN where it has none."""
    column = tl.arange(0, HALF)
    inside = (column < DIM // 2) & (position >= 0) & (position < table_rows)
    line_cos = tl.load(cos + position * cos_stride + column, mask=inside, other=float("nan"))
    line_sin = tl.load(sin + position * sin_stride + column, mask=inside, other=float("nan"))
    return line_cos, line_sin


@triton.jit(do_not_specialize=["q_heads", "kv_heads", "table_rows", "page", "slots_end"])
def norm_rope_kv_write_kernel(
    qkv: tl.tensor,
    positions: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    slots: tl.tensor,
    q_weight: tl.tensor,
    k_weight: tl.tensor,
    out: tl.tensor,
    k_pool: tl.tensor,
    v_pool: tl.tensor,
    q_heads: tl.tensor,
    kv_heads: tl.tensor,
    table_rows: tl.tensor,
    page: tl.tensor,
    slots_end: tl.tensor,
    qkv_stride: tl.tensor,
    cos_stride: tl.tensor,
    sin_stride: tl.tensor,
    out_stride: tl.tensor,
    out_head: tl.tensor,
    k_page: tl.tensor,
    k_slot: tl.tensor,
    k_head: tl.tensor,
    v_page: tl.tensor,
    v_slot: tl.tensor,
    v_head: tl.tensor,
    eps: tl.tensor,
    DIM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
) -> None:
    """Some heads of one row: queries to ``out``, keys and values to the row's slot.

    A program reads all it needs before it writes, and writes only its own heads: ``out`` may be
    the queries of ``qkv`` themselves.
    """
    if OVERLAPPED:
        # The next kernel may be placed; it waits before it reads results. So does this one.
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    q_blocks = tl.cdiv(q_heads, HEADS)
    kv_blocks = tl.cdiv(kv_heads, HEADS)
    source = qkv + row * qkv_stride
    slot = tl.load(slots + row)
    kept = (slot >= 0) & (slot < slots_end)
    number, offset = slot // page, slot % page
    exists = tl.arange(0, HALF) < DIM // 2
    if block < q_blocks:
        head = block * HEADS + tl.arange(0, HEADS)
        inside = (head < q_heads)[:, None] & exists[None, :]
        first, second = load_halves(source, DIM, head, inside, DIM)
        position = tl.load(positions + row).to(tl.int64)
        line_cos, line_sin = angles(
            cos, sin, cos_stride, sin_stride, position, table_rows, HALF, DIM
        )
        if q_weight is not None:
            first, second = normed(first, second, q_weight, eps, DIM)
        first, second = turned(first, second, line_cos, line_sin)
        store_halves(out + row * out_stride, out_head, head, inside, first, second, DIM)
    elif block < q_blocks + kv_blocks:
        head = (block - q_blocks) * HEADS + tl.arange(0, HEADS)
        inside = (head < kv_heads)[:, None] & exists[None, :]
        first, second = load_halves(source + q_heads * DIM, DIM, head, inside, DIM)
        position = tl.load(positions + row).to(tl.int64)
        line_cos, line_sin = angles(
            cos, sin, cos_stride, sin_stride, position, table_rows, HALF, DIM
        )
        if k_weight is not None:
            first, second = normed(first, second, k_weight, eps, DIM)
        first, second = turned(first, second, line_cos, line_sin)
        target = k_pool + (number * k_page + offset * k_slot)
        store_halves(target, k_head, head, inside & kept, first, second, DIM)
    else:
        head = (block - q_blocks - kv_blocks) * HEADS + tl.arange(0, HEADS)
        inside = (head < kv_heads)[:, None] & exists[None, :]
        base = source + (q_heads + kv_heads) * DIM
        first, second = load_halves(base, DIM, head, inside, DIM)
        target = v_pool + (number * v_page + offset * v_slot)
        store_halves(target, v_head, head, inside & kept, first, second, DIM)
