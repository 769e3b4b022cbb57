"""Log-probabilities that are reported to the user: of the target's raw logits."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_core.warp import keep_best

TopLogprobs = tuple[tuple[int, float], ...]
"""`(token id, log-probability)` pairs, best first, of equal ones the lower id first."""


def token_logprobs(row: Tensor, token: int, count: int) -> tuple[float, TopLogprobs]:
    """The log-probability of `token` under softmax(`row`), and the `count` best tokens with theirs.

    Args:
        row: Raw logits `[V]`, before penalties, bias and temperature; float32 or float64.
        token: The id that was picked; it need not be among the best.
        count: How many alternatives, 0 to V.
    """
    logprobs = row.log_softmax(0)
    best = _best_ids(row, count)
    top = tuple(zip(best.tolist(), logprobs[best].tolist(), strict=True))
    return float(logprobs[token]), top


def _best_ids(row: Tensor, count: int) -> Tensor:
    """The ids of the `count` largest logits, best first, of equal ones the lower id first."""
    if count == 0:
        return torch.empty(0, dtype=torch.int64, device=row.device)
    # keep_best marks what it drops with -inf, so impossible tokens must rank just above that.
    finite = torch.nan_to_num(row, neginf=torch.finfo(row.dtype).min)
    ids = keep_best(finite, count).isfinite().nonzero().flatten()
    # Ranked by logits, not by log-probabilities, which may round two of them together.
    return ids[finite[ids].sort(descending=True, stable=True).indices]
