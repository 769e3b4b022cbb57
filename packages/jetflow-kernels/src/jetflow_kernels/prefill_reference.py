"""Causal attention over pages in plain torch: every row is plain decoding behind all before it."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.reference import tree_attention_reference


def prefill_attention_reference(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    page_table: Tensor,
    cu_rows: Tensor,
    prefix_len: Tensor,
    *,
    scale: float | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attention of packed prompts, or chunks of them, over their requests' paged keys and values.

    Request ``b`` has ``cu_rows[b + 1] - cu_rows[b]`` rows behind ``prefix_len[b]`` others. Its row
    ``i`` sees the whole prefix and its own rows ``0..i``.

    Args:
        q: [T, Hq, D] float16, bfloat16, float32 or float64; rows from ``cu_rows[B]`` on are
            padding.
        k_pool: [pages, page, Hkv, D], as in ``tree_attention_reference``.
        v_pool: like ``k_pool``.
        page_table: [B, max_pages] int32, as there.
        cu_rows: [B + 1] int32, first row of each request in ``q``, starting with 0.
        prefix_len: [B] int32.
        scale: factor of the scores; None: ``1 / sqrt(D)``.
        out: [T, Hq, D] in the type of ``q``: written and returned instead of a new tensor.
        lse: [T, Hq] float32: receives the natural log-sum-exp of each row's scaled scores.

    Returns:
        [T, Hq, D] in the type of ``q``, computed in float64 and rounded once; padding rows are 0
        with a log-sum-exp of -inf.

    Raises:
        ValueError: a shape, type, device or value is wrong; the message names it.
    """
    rows, requests = q.shape[0], prefix_len.shape[0]
    if cu_rows.shape != (requests + 1,) or page_table.shape[:1] != (requests,):
        raise ValueError(
            f"cu_rows must be [{requests + 1}] and page_table [{requests}, max_pages] for "
            f"{requests} requests, got {list(cu_rows.shape)} and {list(page_table.shape)}"
        )
    counts = cu_rows.diff()
    if int(cu_rows[0]) != 0 or bool((counts < 0).any()) or int(cu_rows[-1]) > rows:
        raise ValueError(
            f"cu_rows must rise from 0 to at most the {rows} rows of q, got {cu_rows.tolist()}"
        )
    used = int(cu_rows[-1])
    request = torch.repeat_interleave(torch.arange(requests, device=q.device), counts)
    place = torch.arange(used + 1, dtype=torch.int32, device=q.device)
    before = prefix_len[request] + place[:used] - cu_rows[request]
    return tree_attention_reference(
        q,
        k_pool,
        v_pool,
        page_table[request],
        place,
        before,
        torch.ones((rows, 1), dtype=torch.int64, device=q.device),
        scale=scale,
        out=out,
        lse=lse,
    )
