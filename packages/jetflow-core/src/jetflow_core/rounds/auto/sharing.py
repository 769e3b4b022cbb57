"""One heap over all trees of a round, as a step of static shapes.

The trees of a round come best first: the first rows of a tree are the best tree of that size, and
no row has a greater score than one before it. So the best rows of all trees together are the first
rows of each, and sharing them out only asks how many. A threshold answers that: all rows above it,
and of those that equal it the first by depth, then by request, as ``jetflow_tree.share_budget``
settles ties.
"""

from __future__ import annotations

import torch
from torch import Tensor


def best_scores(scores: Tensor, live: Tensor) -> Tensor:
    """Scores of all rows of live trees, best first: float64 ``[R * C]``, -inf behind them.

    Args:
        scores: float64 ``[R, C]``, -inf in padding.
        live: bool ``[R]``.
    """
    return scores.masked_fill(~live[:, None], -torch.inf).flatten().sort(descending=True).values


def shared_counts(
    scores: Tensor, depths: Tensor, live: Tensor, best: Tensor, total: Tensor, *, deepest: int
) -> Tensor:
    """How many rows of each tree are among the ``total`` best of all.

    Args:
        scores: float64 ``[R, C]``, never rising along a tree, -inf in padding.
        depths: int32 ``[R, C]``.
        live: bool ``[R]``: whose trees take part.
        best: from ``best_scores``.
        total: int32 ``[1]``, at least the number of live trees, so that every root is among them.
        deepest: no row is deeper.

    Returns:
        int32 ``[R]``, 0 where not live.
    """
    scores = scores.masked_fill(~live[:, None], -torch.inf)
    threshold = best.gather(0, (total.long() - 1).clamp(0, best.shape[0] - 1))
    sure = (scores > threshold).sum(1)
    tied = (scores == threshold) & (scores > -torch.inf)
    room = total - sure.sum()
    by_depth = torch.zeros(scores.shape[0], deepest + 1, dtype=torch.int64, device=scores.device)
    by_depth.scatter_add_(1, depths.long(), tied.long())
    # Depth by depth, within a depth request by request.
    order = by_depth.t().flatten()
    before = order.cumsum(0) - order
    taken = torch.minimum((room - before).clamp(min=0), order).view(deepest + 1, -1).sum(0)
    return (sure + taken).int().masked_fill(~live, 0)


def promised_tokens(best: Tensor, live: Tensor, rows: Tensor) -> Tensor:
    """Tokens a request that the best rows of all trees are expected to give, the correction too.

    Args:
        best: from ``best_scores``.
        live: bool ``[R]``.
        rows: int64 ``[G]``: so many rows of all trees, 1 or more.

    Returns:
        float64 ``[G]``: their probabilities' sum, a root counting 1, over the live requests. More
        rows than there are give what all give.
    """
    mass = best.exp().cumsum(0)
    return mass.gather(0, (rows - 1).clamp(0, best.shape[0] - 1)) / live.sum().clamp(min=1)
