"""What the sm_90a kernel is told: ``Params`` of ``params.cuh``, and the maps of its bulk copies."""

from __future__ import annotations

import ctypes
import math

from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention.k2 import driver
from jetflow_kernels.attention.k2.configurations import STEP, TYPES

_LOG2_E = 1.0 / math.log(2.0)
_BYTES = 2
_SIGNS = 0x80008000
"""The signs of two values in one register."""
_POINTERS = (
    "q", "v_pool", "page_table", "cu_nodes", "prefix_len", "ancestors",
    "out", "lse", "partial", "partial_lse",
)  # fmt: skip
_STRIDES = (
    "q_row", "q_head", "v_page", "v_slot", "v_head", "table_request", "table_entry",
    "cu_stride", "prefix_stride", "words_row", "words_word",
    "out_row", "out_head", "lse_row", "lse_head",
)  # fmt: skip
_NUMBERS = (
    "rows",
    "requests",
    "heads",
    "group",
    "kv_heads",
    "cluster",
    "page",
    "box",
    "words",
)
_INVERSES = ("group_inverse", "kv_heads_inverse", "page_inverse", "cluster_inverse")
Boxes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Sizes of the axes, strides in bytes of all but the first, and of a box: ``driver.tensor_map``."""


class Params(ctypes.Structure):
    """``Params`` of ``params.cuh``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _STRIDES),
        *((name, ctypes.c_int32) for name in _NUMBERS),
        *((name, ctypes.c_uint32) for name in _INVERSES),
        ("q_keep", ctypes.c_uint32),
        ("q_flip", ctypes.c_uint32),
        ("factor", ctypes.c_float),
        ("q_nodes", ctypes.c_int32),
    ]


def box_rows(page: int) -> int:
    """Rows of one bulk copy: the most that lie within one page wherever a tile begins."""
    return math.gcd(page, STEP)


def params_of(
    arguments: TreeAttentionArguments,
    out: Tensor,
    lse: Tensor | None,
    partials: tuple[Tensor, Tensor] | None,
    box: int,
    cluster: int,
) -> Params:
    """All but the scale, and without bulk copies of queries.

    Args:
        arguments: of the call; checked.
        out: [T, Hq, D].
        lse: [T, Hq] or None.
        partials: results of pieces and their log-sum-exps, where pieces are by length.
        box: ``box_rows`` of a page.
        cluster: programs that share a tile, or ``plan.BY_LENGTH``.
    """
    q, v_pool = arguments.q, arguments.v_pool
    tensors = (
        *(q, v_pool, arguments.page_table, arguments.cu_nodes, arguments.prefix_len),
        *(arguments.ancestors, out, lse, *(partials or (None, None))),
    )
    strides = (
        *q.stride()[:2],
        *v_pool.stride()[:3],
        *arguments.page_table.stride(),
        *arguments.cu_nodes.stride(),
        *arguments.prefix_len.stride(),
        *arguments.ancestors.stride(),
        *out.stride()[:2],
        *((0, 0) if lse is None else lse.stride()),
    )
    rows, heads = q.shape[:2]
    page, kv_heads = v_pool.shape[1:3]
    words = arguments.ancestors.shape[1]
    requests = arguments.prefix_len.shape[0]
    return Params(
        *(None if tensor is None else tensor.data_ptr() for tensor in tensors),
        *strides,
        *(rows, requests, heads, heads // kv_heads, kv_heads, cluster, page, box, words),
        *(inverse(heads // kv_heads), inverse(kv_heads), inverse(page), inverse(max(cluster, 1))),
    )


def inverse(divisor: int) -> int:
    """By which the kernel multiplies instead of a division: see ``divided`` of geometry.cuh."""
    return 0 if divisor == 1 else (1 << 32) // divisor + 1


def set_scale(parameters: Params, scale: float) -> None:
    """Keeps the factor of the scores positive: its sign and a factor of 0 go into the queries."""
    # As a float32, in which a small scale may be 0.
    factor = ctypes.c_float(abs(scale) * _LOG2_E).value
    parameters.q_keep = 0 if factor == 0 else 0xFFFFFFFF
    parameters.q_flip = _SIGNS if scale < 0 and factor != 0 else 0
    parameters.factor = factor or 1.0


def query_nodes(parameters: Params) -> int:
    """Tree rows whose queries one bulk copy brings; 0 where threads load them instead.

    The group must divide what a warpgroup multiplies, and the scale be positive: its sign, and a
    factor of 0, are put into queries on their way through registers.
    """
    plain = parameters.q_keep == 0xFFFFFFFF and parameters.q_flip == 0
    return STEP // parameters.group if plain and STEP % parameters.group == 0 else 0


def query_boxes(q: Tensor, group: int, nodes: int) -> Boxes:
    """How the copy engine finds queries of a key head: values, heads, rows, and an axis of one."""
    rows, heads, dim = q.shape
    by_row, by_head, _ = q.stride()
    return _boxes((dim, heads, rows, 1), (by_head, by_row, 0), (group, max(nodes, 1), 1))


def query_map(q: Tensor, group: int, nodes: int) -> ctypes.Array[ctypes.c_char]:
    """The tensor map of ``query_boxes``.

    Raises:
        DriverError: the driver refused.
    """
    boxes = query_boxes(q, group, nodes)
    return driver.tensor_map(q.data_ptr(), TYPES[q.dtype], *boxes)


def pool_map(pool: Tensor, box: int) -> ctypes.Array[ctypes.c_char]:
    """The tensor map of a pool: values, rows of a page, heads, pages.

    Raises:
        DriverError: the driver refused.
    """
    pages, page, heads, dim = pool.shape
    by_page, by_slot, by_head, _ = pool.stride()
    boxes = _boxes((dim, page, heads, pages), (by_slot, by_head, by_page), (box, 1, 1))
    return driver.tensor_map(pool.data_ptr(), TYPES[pool.dtype], *boxes)


def _boxes(sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...]) -> Boxes:
    """Of an axis of values and others; ``strides`` in elements and ``box`` are of the others."""
    # An axis of one element may have any stride, also one that the driver refuses.
    steps = tuple(
        (stride if size > 1 else sizes[0]) * _BYTES
        for size, stride in zip(sizes[1:], strides, strict=True)
    )
    return sizes, steps, (STEP, *box)
