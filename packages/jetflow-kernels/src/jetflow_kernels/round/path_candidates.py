"""Candidates of every depth along the drafted paths, from pools of tokens and their path terms."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    LOGITS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    power_of_two,
)

MOST_WIDTH = 32
"""K, candidates of a depth."""
MOST_POOL = 128
"""Q, tokens of a depth's pool; one program holds K times Q scores."""
Found = tuple[Tensor, Tensor]


def path_candidates(
    first_tokens: Tensor,
    first: Tensor,
    pooled: Tensor,
    base: Tensor,
    bias: Tensor,
    temperatures: Tensor,
    *,
    out: Found | None = None,
) -> Found:
    """K candidates of each depth and what is given each parent candidate, in one launch.

    Depth 1 has its candidates. For each deeper depth the scores of its pool after a parent are
    those of the depth plus the path term, over all of them and a rest that keeps its own mass. The
    K tokens that the paths so far make likeliest are the depth's candidates, likeliest first, the
    earlier in the pool first among equals, and the parents of the next depth.

    Args:
        first_tokens: [R, K] int32, candidates of depth 1; K up to 32.
        first: [R, K] float32, their log-probabilities.
        pooled: [R, D, Q] int32, the pools of depths 2 to D + 1; D at least 0, Q from K to 128.
        base: [R, D, Q] float32, log-probabilities of the pools by the depths' own distributions.
        bias: [R, D, Q, Q] float32, bfloat16 or float16: what the path term adds to a token of the
            pool (last) after a parent: for depth 2 candidate 0..K-1 of depth 1, the lines behind
            are not read; for the others a token of the pool before.
        temperatures: [R] float64: what the scores are divided by in the end, before they are made
            to sum to one with the rest again; 1 changes nothing. Which tokens are chosen does not
            depend on it.
        out: results to write into instead of new ones.

    Returns:
        [R, D + 1, K] int32, and [R, D + 1, K, K] float32: log-probabilities, never above 0, of the
        candidates (last) after each parent candidate; the same for all parents at depth 1. NaN
        where the input has NaN.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    tokens, table = _check(first_tokens, first, pooled, base, bias, temperatures, out)
    if first_tokens.shape[0]:
        _path_candidates(
            first_tokens.contiguous(), first.contiguous(), pooled.contiguous(), base.contiguous(),
            bias.contiguous(), temperatures, tokens, table,
        )  # fmt: skip
    return tokens, table


def path_candidates_reference(
    first_tokens: Tensor,
    first: Tensor,
    pooled: Tensor,
    base: Tensor,
    bias: Tensor,
    temperatures: Tensor,
    *,
    out: Found | None = None,
) -> Found:
    """What ``path_candidates`` returns, on any device, depth by depth in float64.

    Args:
        first_tokens: see there.
        first: see there.
        pooled: see there.
        base: see there.
        bias: see there.
        temperatures: see there.
        out: see there.

    Returns:
        Tokens and log-probabilities.

    Raises:
        ValueError: as there, except that any device will do.
    """
    tokens, table = _check(first_tokens, first, pooled, base, bias, temperatures, out)
    requests, width = first_tokens.shape
    heat = temperatures[:, None, None].double()
    tokens[:, 0] = first_tokens
    table[:, 0] = _tempered(first.double()[:, None].expand(-1, width, -1), heat)
    places = torch.arange(width, device=first.device).expand(requests, -1)
    chance = first.double().exp()
    for depth in range(pooled.shape[1]):
        own = base[:, depth].double()
        terms = bias[:, depth].double().gather(1, places[..., None].expand(-1, -1, own.shape[1]))
        scores = own[:, None] + terms
        rest = torch.log1p(-own.exp().sum(-1).clamp(max=1.0)).clamp(min=-80.0)
        total = torch.logaddexp(scores.logsumexp(-1), rest[:, None])
        scores = (scores - total[..., None]).clamp(max=0.0)
        reached = (chance[..., None] * scores.exp()).sum(1)
        places = reached.nan_to_num(nan=-1.0).sort(dim=-1, descending=True, stable=True).indices
        places = places[:, :width]
        chance = reached.gather(1, places)
        tokens[:, depth + 1] = pooled[:, depth].gather(1, places)
        kept = scores.gather(2, places[:, None].expand(-1, width, -1))
        table[:, depth + 1] = _tempered(kept, heat)
    return tokens, table


def _tempered(scores: Tensor, heat: Tensor) -> Tensor:
    """Log-probabilities over a temperature; what they and the rest sum to is divided out."""
    rest = (1.0 - scores.exp().sum(-1, keepdim=True)).clamp(min=0.0).log()
    mass = torch.cat([scores, rest], dim=-1) / heat
    changed = scores / heat - mass.logsumexp(-1, keepdim=True)
    return torch.where(heat == 1.0, scores, changed).clamp(max=0.0)


@torch.library.custom_op("jetflow_kernels::path_candidates", mutates_args=("tokens", "table"))
def _path_candidates(
    first_tokens: Tensor,
    first: Tensor,
    pooled: Tensor,
    base: Tensor,
    bias: Tensor,
    temperatures: Tensor,
    tokens: Tensor,
    table: Tensor,
) -> None:
    from jetflow_kernels.round.path_kernel import path_kernel

    requests, depths, pool = pooled.shape
    width = first.shape[1]
    with device_of(path_kernel, first):
        path_kernel[(requests,)](
            first_tokens, first, pooled, base, bias, temperatures, tokens, table,
            depths, width, pool,
            WIDTH=power_of_two(width), POOL=power_of_two(pool), num_warps=warps_of(width, pool),
        )  # fmt: skip


@_path_candidates.register_fake
def _(*arguments: Tensor) -> None:
    """The results are written in place; nothing is made."""


def warps_of(width: int, pool: int) -> int:
    """Warps of a program: a lane holds 8 of the scores, or 32 where those are most."""
    return min(4 if pool <= 64 else 8, max(1, power_of_two(width) * power_of_two(pool) // 256))


def _check(
    first_tokens: Tensor,
    first: Tensor,
    pooled: Tensor,
    base: Tensor,
    bias: Tensor,
    temperatures: Tensor,
    out: Found | None,
) -> Found:
    device = first_tokens.device
    expect("first_tokens", first_tokens, (-1, -1), (torch.int32,), device)
    requests, width = first_tokens.shape
    expect_range("the candidates K of first_tokens", width, 1, MOST_WIDTH)
    expect("first", first, (requests, width), (torch.float32,), device)
    expect("pooled", pooled, (requests, -1, -1), (torch.int32,), device)
    depths, pool = pooled.shape[1:]
    expect_range("the tokens Q of pooled", pool, width, MOST_POOL)
    expect("base", base, (requests, depths, pool), (torch.float32,), device)
    expect("bias", bias, (requests, depths, pool, pool), LOGITS, device)
    expect("temperatures", temperatures, (requests,), (torch.float64,), device)
    shape = (requests, depths + 1, width)
    if out is None:
        return (
            torch.empty(shape, dtype=torch.int32, device=device),
            torch.empty(*shape, width, dtype=torch.float32, device=device),
        )
    expect("out[0]", out[0], shape, (torch.int32,), device)
    expect("out[1]", out[1], (*shape, width), (torch.float32,), device)
    for name, tensor in zip(("out[0]", "out[1]"), out, strict=True):
        expect_contiguous(name, tensor)
    return out
