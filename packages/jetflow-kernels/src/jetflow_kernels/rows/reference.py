"""Row attention in plain torch: one row at a time, in float64, over what the row sees."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.rows.arguments import check_rows


@torch.no_grad()
def row_attention_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    lengths: Tensor,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """What ``row_attention`` returns, on any device, in float64 and rounded once.

    Args:
        queries: see there; float64 as well.
        keys: see there.
        values: see there.
        lengths: see there; looked at on the host.
        scale: see there.
        out: see there.

    Returns:
        ``[R, heads, dim]`` in the type of ``queries``.

    Raises:
        ValueError: a shape, type, device, scale or length is wrong; named. Nothing was written.

    Examples:
        A row that sees one column gets its value:

        >>> ones = torch.ones(1, 1, 1, 4)
        >>> length = torch.ones(1, dtype=torch.int32)
        >>> row_attention_reference(torch.ones(1, 1, 4), ones, ones, length)
        tensor([[[1., 1., 1., 1.]]])
    """
    scale, result = check_rows(queries, keys, values, lengths, scale=scale, out=out)
    seen = lengths.tolist()
    for row, length in enumerate(seen):
        if not 0 <= length <= keys.shape[1]:
            raise ValueError(f"lengths[{row}] must be in 0..{keys.shape[1]}, got {length}")
    group = queries.shape[1] // keys.shape[2]
    for row, length in enumerate(seen):
        k = keys[row, :length].double().repeat_interleave(group, dim=1)
        v = values[row, :length].double().repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,chd->hc", queries[row].double(), k) * scale
        result[row] = torch.einsum("hc,chd->hd", scores.softmax(-1), v).to(queries.dtype)
    return result
