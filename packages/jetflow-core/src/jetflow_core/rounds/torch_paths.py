"""Candidates along the drafted paths in plain torch: the reference of the step of a round."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_core.head.path import conditional_table


def path_candidates(
    first_tokens: Tensor,
    first: Tensor,
    pooled: Tensor,
    base: Tensor,
    bias: Tensor,
    temperatures: Tensor,
) -> tuple[Tensor, Tensor]:
    """See ``RoundOps``; in the type of ``base``, and over a temperature in float64."""
    requests, width = first_tokens.shape
    places = torch.arange(width, device=first.device).expand(requests, -1)
    chance = first.exp()
    tokens, tables = [first_tokens], [first[:, None].expand(-1, width, -1)]
    for depth in range(pooled.shape[1]):
        lines = places[..., None].expand(-1, -1, bias.shape[3])
        terms = bias[:, depth].gather(1, lines).to(base.dtype)
        scores = conditional_table(base[:, depth], terms)
        reached = (chance[..., None] * scores.exp()).sum(1)
        best = reached.nan_to_num(nan=-1.0).sort(dim=-1, descending=True, stable=True).indices
        places = best[:, :width]
        chance = reached.gather(1, places)
        tokens.append(pooled[:, depth].gather(1, places))
        tables.append(scores.gather(2, places[:, None].expand(-1, width, -1)))
    table = torch.stack(tables, dim=1).clamp(max=0.0)
    return torch.stack(tokens, dim=1).int(), tempered(table, temperatures)


def tempered(log_probs: Tensor, temperatures: Tensor) -> Tensor:
    """What ``jetflow_tree.calibrated`` makes of candidates, one temperature a request.

    Args:
        log_probs: ``[R, D, P, K]``.
        temperatures: float64 ``[R]``; 1 changes nothing.

    Returns:
        float64 ``[R, D, P, K]``.
    """
    scale, wide = temperatures[:, None, None, None], log_probs.double()
    rest = (1.0 - wide.exp().sum(-1, keepdim=True)).clamp(min=0.0).log()
    mass = torch.cat([wide, rest], dim=-1) / scale
    changed = (wide / scale - mass.logsumexp(-1, keepdim=True)).clamp(max=0.0)
    return torch.where(scale == 1.0, wide, changed)
