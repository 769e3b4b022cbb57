"""Attention of a batch's leading rows over vLLM's cache of a GPU, by the kernels of a round."""

from __future__ import annotations

from jetflow_core.rounds import RoundOps
from torch import Tensor

from jetflow_serve.leading_rows import LeadingRows
from jetflow_serve.packed_cache import packed_pools


def attend_leading(
    ops: RoundOps,
    query: Tensor,
    cache: Tensor,
    block_table: Tensor,
    leading: LeadingRows,
    scale: float,
    output: Tensor,
) -> None:
    """Writes the attention of the leading rows into ``output``.

    Args:
        ops: the steps of a round on this device.
        query: ``[T or more, heads, head size]`` of the batch's rows.
        cache: the layer's cache, in which the rows' own keys and values are already.
        block_table: int32 ``[R or more, blocks]``.
        leading: which rows, and what they see.
        scale: what scores are multiplied with.
        output: like ``query``.
    """
    keys, values = packed_pools(cache)
    attended = ops.tree_attention(
        query[: leading.rows],
        keys,
        values,
        block_table[: leading.requests],
        leading.cu_nodes,
        leading.prefix_len,
        leading.ancestors,
        scale=scale,
    )
    output[: leading.rows] = attended.view_as(output[: leading.rows])
