"""Between a layer's projection and its attention: head norms, rotary embedding, cache write."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    INTEGERS,
    LOGITS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    placed,
    power_of_two,
)

DIM_STEP, MOST_DIM = 16, 256
"""Head dims are multiples of the one, up to the other."""
HEADS = 8
"""Heads of one program."""


def norm_rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    *,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    out: Tensor | None = None,
    overlapped: bool = False,
) -> Tensor:
    """Norms and turns queries and keys, and writes keys and values to the cache, in one launch.

    It rounds where transformers' Qwen3 does: a head over its root mean square in float32, rounded
    to the type of ``qkv``; times the weight, rounded; then cos and sin rounded to that type, each
    of the two products of the rotation rounded, and their sum rounded. Llama and Qwen2 have no
    head norms: leave out the weights. A row's bits do not depend on the other rows.

    Args:
        qkv: [T, (Hq + 2 Hkv) * D] float32, bfloat16 or float16, the projection with its bias:
            all query heads, all key heads, all value heads of a row; the last axis without gaps.
        positions: [T] int32 or int64, contiguous. A position outside the table turns queries and
            keys of its row into NaN.
        cos: [P, D / 2] float32, bfloat16 or float16: the cosine of each position's angles, for
            the pairs (i, i + D / 2) of a head; the last axis without gaps. The first half of each
            line is enough where a model repeats it.
        sin: likewise, in the type of ``cos``.
        slots: [T] int64, contiguous: page times page size plus the row in the page. Keys and
            values of rows with a slot below 0 or past the last page are not written. Slots that
            are written differ.
        k_pool: [pages, page, Hkv, D] in the type of ``qkv``, changed in place; any strides but
            that of D, which is 1: a view of the packed [pages, Hkv, page, 2 D] will do. D is a
            multiple of 16 up to 256.
        v_pool: like ``k_pool``, with strides of its own.
        q_weight: [D] in the type of ``qkv``, contiguous: the norm's weight; None: no norms.
        k_weight: likewise; there if and only if ``q_weight`` is.
        eps: what the norms add to the mean square.
        out: [T, Hq, D] in the type of ``qkv``, any strides but that of D, which is 1, to be
            written instead of a new tensor. May be the queries of ``qkv``, exactly.
        overlapped: whether the kernel is placed while the one ahead on the stream ends, for which
            it waits by itself. For capability 9.0 and later; of no effect in the interpreter.
            Changes no bits.

    Returns:
        [T, Hq, D]: the queries, of all rows whatever their slots.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    result = _check(qkv, positions, cos, sin, slots, k_pool, v_pool, q_weight, k_weight, eps, out)
    if qkv.shape[0]:
        torch.ops.jetflow_kernels.norm_rope_kv_write(
            *(qkv, positions, cos, sin, slots, k_pool, v_pool, q_weight, k_weight, eps, result),
            overlapped,
        )
    return result


def norm_rope_kv_write_reference(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    *,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    eps: float = 1e-6,
    out: Tensor | None = None,
) -> Tensor:
    """What ``norm_rope_kv_write`` does, on any device, one operation at a time.

    Args:
        qkv: see there.
        positions: see there.
        cos: see there.
        sin: see there.
        slots: see there.
        k_pool: see there.
        v_pool: see there.
        q_weight: see there.
        k_weight: see there.
        eps: see there.
        out: see there.

    Returns:
        The queries.

    Raises:
        ValueError: as there, except that any device will do.
    """
    result = _check(qkv, positions, cos, sin, slots, k_pool, v_pool, q_weight, k_weight, eps, out)
    pages, page, kv_heads, dim = k_pool.shape
    heads = qkv.unflatten(1, (-1, dim))
    q, k, v = heads.split((result.shape[1], kv_heads, kv_heads), dim=1)
    if q_weight is not None and k_weight is not None:
        q, k = _normed(q, q_weight, eps), _normed(k, k_weight, eps)
    lines = _lines(cos, positions).to(qkv.dtype), _lines(sin, positions).to(qkv.dtype)
    kept = (slots >= 0) & (slots < pages * page)
    places = slots[kept] // page, slots[kept] % page
    k_pool[places] = _turned(k, *lines)[kept]
    v_pool[places] = v[kept]
    return result.copy_(_turned(q, *lines))


def _normed(heads: Tensor, weight: Tensor, eps: float) -> Tensor:
    values = heads.float()
    scale = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
    return weight * (values * scale).to(heads.dtype)


def _lines(table: Tensor, positions: Tensor) -> Tensor:
    """The table's line of each position, NaN where it has none, one for all heads."""
    rows = table.shape[0]
    outside = (positions < 0) | (positions >= rows)
    lines = table[positions.long().clamp(0, rows - 1)]
    return lines.masked_fill(outside[:, None], torch.nan)[:, None]


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


# Defined by its schema: ``custom_op`` would import torch's compiler on the first call.
OPERATOR = "jetflow_kernels::norm_rope_kv_write"
torch.library.define(
    OPERATOR,
    "(Tensor qkv, Tensor positions, Tensor cos, Tensor sin, Tensor slots, Tensor(a!) k_pool,"
    " Tensor(b!) v_pool, Tensor? q_weight, Tensor? k_weight, float eps, Tensor(c!) out,"
    " bool overlapped=False) -> ()",
)


@torch.library.impl(OPERATOR, ("cpu", "cuda"))
def _norm_rope_kv_write(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    out: Tensor,
    overlapped: bool = False,
) -> None:
    from jetflow_kernels.round.cache_write_kernel import norm_rope_kv_write_kernel

    rows, q_heads, dim = out.shape
    pages, page, kv_heads, _ = k_pool.shape
    half = power_of_two(dim // 2)
    blocks = -(-q_heads // HEADS) + 2 * -(-kv_heads // HEADS)
    with device_of(norm_rope_kv_write_kernel, qkv):
        norm_rope_kv_write_kernel[(rows, blocks)](
            qkv, positions, cos, sin, slots, q_weight, k_weight, out, k_pool, v_pool,
            q_heads, kv_heads, cos.shape[0], page, pages * page,
            qkv.stride(0), cos.stride(0), sin.stride(0), *out.stride()[:2],
            *k_pool.stride()[:3], *v_pool.stride()[:3], eps,
            DIM=dim, HALF=half, HEADS=HEADS, num_warps=warps_of(half),
            # A product that is not rounded before the sum would differ from torch's.
            enable_fp_fusion=False,
            **placed(overlapped and hasattr(norm_rope_kv_write_kernel, "device_caches")),
        )  # fmt: skip


@torch.library.register_fake(OPERATOR)
def _(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    out: Tensor,
    overlapped: bool = False,
) -> None:
    """The results are written in place; nothing is made."""


def warps_of(half: int) -> int:
    """Warps of a program: a thread reads 16 bytes of each half, of ``half`` columns, of 16 bits."""
    return max(1, HEADS * half // 256)


def _check(
    qkv: Tensor,
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    out: Tensor | None,
) -> Tensor:
    device, dtype = qkv.device, qkv.dtype
    expect("qkv", qkv, (-1, -1), LOGITS, device)
    rows, width = qkv.shape
    expect("k_pool", k_pool, (-1, -1, -1, -1), (dtype,), device)
    expect("v_pool", v_pool, tuple(k_pool.shape), (dtype,), device)
    _, page, kv_heads, dim = k_pool.shape
    expect_range("the head dim D of k_pool", dim, DIM_STEP, MOST_DIM)
    if dim % DIM_STEP:
        raise ValueError(f"the head dim D of k_pool must be a multiple of {DIM_STEP}, got {dim}")
    if min(page, kv_heads) < 1:
        raise ValueError(f"k_pool must have rows and heads, got shape {list(k_pool.shape)}")
    q_heads, rest = divmod(width - 2 * kv_heads * dim, dim)
    if rest or q_heads < 1:
        raise ValueError(
            f"qkv must have (Hq + 2 * {kv_heads}) * {dim} columns with Hq at least 1, got {width}"
        )
    _check_lines(positions, cos, sin, slots, rows, dim, device)
    _check_norms(q_weight, k_weight, eps, qkv, dim)
    if out is None:
        out = torch.empty(rows, q_heads, dim, dtype=dtype, device=device)
    expect("out", out, (rows, q_heads, dim), (dtype,), device)
    _check_gaps(("qkv", qkv), ("cos", cos), ("sin", sin), ("k_pool", k_pool), ("v_pool", v_pool),
                ("out", out))  # fmt: skip
    return out


def _check_lines(
    positions: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    rows: int,
    dim: int,
    device: torch.device,
) -> None:
    expect("positions", positions, (rows,), INTEGERS, device)
    expect("slots", slots, (rows,), (torch.int64,), device)
    expect_contiguous("positions", positions)
    expect_contiguous("slots", slots)
    expect("cos", cos, (-1, dim // 2), LOGITS, device)
    expect("sin", sin, tuple(cos.shape), (cos.dtype,), device)
    if cos.shape[0] < 1:
        raise ValueError("cos must have at least 1 position, got 0")


def _check_norms(
    q_weight: Tensor | None, k_weight: Tensor | None, eps: float, qkv: Tensor, dim: int
) -> None:
    for name, weight, other in (
        ("q_weight", q_weight, "k_weight"),
        ("k_weight", k_weight, "q_weight"),
    ):
        if weight is not None:
            expect(name, weight, (dim,), (qkv.dtype,), qkv.device)
            expect_contiguous(name, weight)
        elif (q_weight is None) != (k_weight is None):
            raise ValueError(f"{name} must be there if {other} is, got None")
    if not eps >= 0:
        raise ValueError(f"eps must be at least 0, got {eps}")


def _check_gaps(*named: tuple[str, Tensor]) -> None:
    for name, tensor in named:
        if tensor.stride(-1) != 1:
            raise ValueError(
                f"{name} must have no gaps in its last axis, got strides {tensor.stride()}"
            )
