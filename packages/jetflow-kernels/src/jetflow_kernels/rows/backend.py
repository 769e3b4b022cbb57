"""Row attention as an offline decoder calls it: the entry point ``jetflow.row_attention``."""

from __future__ import annotations

from torch import Tensor

from jetflow_kernels.rows.op import row_attention


def attend_rows(
    queries: Tensor, keys: Tensor, values: Tensor, lengths: Tensor, longest: int
) -> Tensor:
    """``row_attention`` of a decoding step.

    Args:
        queries: ``[R, heads, dim]``.
        keys: ``[R, capacity, kv_heads, dim]``.
        values: likewise.
        lengths: int32 ``[R]``.
        longest: a bound of ``lengths``, which other backends need; not looked at.

    Returns:
        ``[R, heads, dim]``.

    Raises:
        ValueError: see ``row_attention``.
        RuntimeError: likewise.
    """
    return row_attention(queries, keys, values, lengths)
