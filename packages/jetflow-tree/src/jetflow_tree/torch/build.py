"""Exact best-first trees by a level sweep: the heap's result in fixed shapes.

Nodes are ordered by score descending, then depth ascending, then lexicographic path of candidate
indices. No log-probability is above 0 and rounded addition is monotone, so a parent precedes its
children in that order, also on ties. Hence if a node is among the best B, fewer than B nodes of
its own depth precede it and its parent is among the best B too. So it is enough to keep, depth by
depth, the best B - 1 children of the kept nodes, and to take the best B of all that was kept.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_tree.torch.trees import (
    NO_PARENT,
    PADDING_TOKEN,
    DeviceTrees,
    check_int64,
    check_shape,
)

NEVER = float("-inf")


def best_first(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budget: int,
    *,
    live_budgets: Tensor | None = None,
    score_dtype: torch.dtype = torch.float64,
) -> DeviceTrees:
    """Build the trees of the `budget` best nodes of every request.

    With float64 scores the result equals `jetflow_tree.BestFirst` node for node and in the same
    order, ties included. Nothing is read back to the host and every shape depends on the shapes
    of the arguments only, so the call can be captured in a CUDA graph and replayed.

    A request whose input is outside the contract (a log-probability that is NaN or above 0, a
    token that is negative or twice at a depth, a live budget outside 1..budget) cannot raise
    without a synchronisation: its tree is the root alone and its `valid` is False. Requests
    beside it are not affected. Fewer depths or candidates than D or K are said by -inf; the
    token of a candidate that is -inf everywhere is not looked at.

    Args:
        tokens: [R, D, K] int64, the candidates of each depth, distinct within a depth, not
            negative.
        log_probs: [R, D, P, K] floating, P = 1 or K: log-probability of a candidate given its
            parent candidate (P = K) or given its depth alone (P = 1). Never above 0; -inf: never
            a node. At the first depth the only parent is the root and row 0 is read.
        roots: [R] int64, the last committed token of each request.
        budget: B, rows of every tree, root included, at least 1.
        live_budgets: [R] int64, a smaller budget per request; the rows behind it are padding.
        score_dtype: float64, or float32 on devices without it; sums of float32 round to ties
            that the heap does not see.

    Raises:
        ValueError: A shape, a type or the budget is not as said above.
    """
    _check(tokens, log_probs, roots, budget, live_budgets, score_dtype)
    max_depth = tokens.shape[1]
    if live_budgets is None:
        live_budgets = torch.full_like(roots, budget)
    valid = _in_contract(tokens, log_probs) & (live_budgets >= 1) & (live_budgets <= budget)
    scores = log_probs.to(score_dtype).masked_fill(~valid[:, None, None, None], NEVER)

    pool = [_Level.of_roots(roots, score_dtype)]
    offset = 0
    if budget > 1:
        for depth in range(max_depth):
            level = _next_level(pool[-1], tokens[:, depth], scores[:, depth], offset, budget - 1)
            offset += pool[-1].scores.shape[1]
            pool.append(level)
    return _take_best(pool, budget, torch.where(valid, live_budgets, 1), valid, max_depth)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Level:
    """The nodes kept at one depth, all [R, F], in lexicographic order of their paths."""

    tokens: Tensor
    scores: Tensor
    candidates: Tensor
    """Index on the axis K."""
    parents: Tensor
    """Place of the parent in the concatenation of all levels."""

    @staticmethod
    def of_roots(roots: Tensor, score_dtype: torch.dtype) -> "_Level":
        tokens = roots[:, None]
        zeros = torch.zeros_like(tokens)
        return _Level(
            tokens=tokens,
            scores=zeros.to(score_dtype),
            candidates=zeros,
            parents=torch.full_like(tokens, NO_PARENT),
        )


def _next_level(
    level: _Level, tokens: Tensor, log_probs: Tensor, offset: int, width: int
) -> _Level:
    """The best `width` children of a level's nodes; `offset` is the place of its first node.

    `tokens` is [R, K], `log_probs` [R, P, K].
    """
    num_candidates = tokens.shape[1]
    if log_probs.shape[1] > 1:
        rows = level.candidates[..., None].expand(-1, -1, num_candidates)
        log_probs = log_probs.gather(1, rows)
    # Parents in lexicographic order, candidates in index order: flattened, still lexicographic.
    scores = (level.scores[..., None] + log_probs).flatten(1)
    kept = _best_in_place(scores, min(width, scores.shape[1]))
    candidates = kept % num_candidates
    return _Level(
        tokens=tokens.gather(1, candidates),
        scores=scores.gather(1, kept),
        candidates=candidates,
        parents=offset + kept // num_candidates,
    )


def _best_in_place(scores: Tensor, count: int) -> Tensor:
    """Columns of the `count` greatest scores of each row, first ones on ties, in ascending order.

    A threshold and a running count do this without a sort: [R, N] to [R, count] int64.
    """
    num_requests, num_columns = scores.shape
    if count == num_columns:
        return torch.arange(count, device=scores.device).expand(num_requests, -1)
    threshold = scores.topk(count, sorted=False).values.amin(1, keepdim=True)
    above = scores > threshold
    at = scores == threshold
    room = count - above.sum(1, keepdim=True)
    keep = above | (at & (at.cumsum(1) <= room))
    ordinals = torch.arange(1, count + 1, device=scores.device).expand(num_requests, -1)
    return torch.searchsorted(keep.cumsum(1), ordinals.contiguous())


def _take_best(
    pool: list[_Level], budget: int, live_budgets: Tensor, valid: Tensor, max_depth: int
) -> DeviceTrees:
    """The best nodes of all levels, in order, padded to `budget` rows."""
    missing = max(0, budget - sum(level.scores.shape[1] for level in pool))
    scores = _concatenate([level.scores for level in pool], missing, NEVER)
    tokens = _concatenate([level.tokens for level in pool], missing, PADDING_TOKEN)
    parents = _concatenate([level.parents for level in pool], missing, NO_PARENT)
    depths = _concatenate(
        [torch.full_like(level.tokens, depth) for depth, level in enumerate(pool)], missing, 0
    )
    # The pool is in order of depth and then of path, so that a stable sort settles every tie.
    best_scores, order = scores.sort(dim=1, descending=True, stable=True)
    row_of = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    best, best_scores = order[:, :budget], best_scores[:, :budget]
    num_nodes = torch.minimum((best_scores > NEVER).sum(1), live_budgets)
    rows = torch.arange(budget, device=order.device)
    padding = rows >= num_nodes[:, None]
    parent_rows = row_of.gather(1, parents.gather(1, best).clamp(min=0))
    return DeviceTrees(
        tokens=tokens.gather(1, best).masked_fill(padding, PADDING_TOKEN),
        parents=parent_rows.masked_fill(padding | (rows == 0), NO_PARENT),
        depths=depths.gather(1, best).masked_fill(padding, 0),
        scores=best_scores.masked_fill(padding, NEVER),
        num_nodes=num_nodes,
        valid=valid,
        max_depth=max_depth,
    )


def _concatenate(parts: list[Tensor], missing: int, fill: float) -> Tensor:
    """The parts [R, ...] side by side, with `missing` columns of `fill` behind them."""
    return torch.nn.functional.pad(torch.cat(parts, dim=1), (0, missing), value=fill)


def _in_contract(tokens: Tensor, log_probs: Tensor) -> Tensor:
    """[R] bool: what `Candidates` checks with an exception, per request and without one."""
    # NaN fails the comparison as well.
    at_most_zero = (log_probs <= 0).flatten(1).all(1)
    possible = (log_probs > NEVER).any(2)
    not_negative = ((tokens >= 0) | ~possible).flatten(1).all(1)
    # What can never be a node gets a token of its own, so that padding is not a duplicate.
    stand_in = -1 - torch.arange(tokens.shape[2], device=tokens.device)
    ordered = torch.where(possible, tokens, stand_in).sort(-1).values
    distinct = (ordered[..., 1:] != ordered[..., :-1]).flatten(1).all(1)
    return at_most_zero & not_negative & distinct


def _check(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budget: int,
    live_budgets: Tensor | None,
    score_dtype: torch.dtype,
) -> None:
    """Refuse what can be refused without reading the device."""
    if budget < 1:
        raise ValueError(f"budget must be at least 1 (the root), got {budget}")
    if tokens.dim() != 3:
        raise ValueError(f"tokens must be [R, D, K], got {list(tokens.shape)}")
    num_requests, depth, width = tokens.shape
    if depth > 0 and width < 1:
        raise ValueError(f"tokens must hold at least 1 candidate a depth, got {list(tokens.shape)}")
    check_int64("tokens", tokens, (num_requests, depth, width))
    parents = log_probs.shape[2] if log_probs.dim() == 4 else 1
    if parents not in (1, width):
        raise ValueError(f"log_probs must have 1 or {width} parent rows a depth, got {parents}")
    check_shape("log_probs", log_probs, (num_requests, depth, parents, width))
    if not log_probs.is_floating_point():
        raise ValueError(f"log_probs must be floating, got {log_probs.dtype}")
    check_int64("roots", roots, (num_requests,))
    if live_budgets is not None:
        check_int64("live_budgets", live_budgets, (num_requests,))
    if score_dtype not in (torch.float32, torch.float64):
        raise ValueError(f"score_dtype must be float32 or float64, got {score_dtype}")
