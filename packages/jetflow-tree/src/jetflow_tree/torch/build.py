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
from torch.nn.functional import pad

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
    if live_budgets is None:
        live_budgets = torch.full_like(roots, budget)
    valid = _in_contract(tokens, log_probs) & (live_budgets >= 1) & (live_budgets <= budget)
    log_probs = log_probs.to(score_dtype).masked_fill(~valid[:, None, None, None], NEVER)
    pool = _pool(roots, tokens, *_sweep(log_probs, budget - 1), budget)
    num_allowed = torch.where(valid, live_budgets, 1)
    return _take_best(pool, budget, num_allowed, valid, max_depth=tokens.shape[1])


def _sweep(log_probs: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The best `width` nodes of every depth, each depth in lexicographic order of the paths.

    Returns:
        `chosen` [R, D, F] int64: place of the parent in the depth above, times K, plus the
        candidate; and `scores` [R, D, F], -inf where a depth has fewer than F nodes.
    """
    num_requests, _, parents, num_candidates = log_probs.shape
    frontier = log_probs.new_zeros(num_requests, 1)
    candidates = torch.zeros_like(frontier, dtype=torch.int64)
    levels: list[tuple[Tensor, Tensor]] = []
    for below in log_probs.unbind(1) if width else ():
        if parents > 1:
            below = below.gather(1, candidates[..., None].expand(-1, -1, num_candidates))
        # Parents in lexicographic order, candidates in index order: flattened, still so.
        scores = (frontier[..., None] + below).flatten(1)
        chosen = _best_in_place(scores, min(width, scores.shape[1]))
        frontier, candidates = scores.gather(1, chosen), chosen % num_candidates
        levels.append((chosen, frontier))
    if not levels:
        return candidates.new_empty(num_requests, 0, 1), frontier.new_empty(num_requests, 0, 1)
    # A depth is never narrower than the one above it.
    widest = frontier.shape[1]
    return (
        torch.stack([pad(chosen, (0, widest - chosen.shape[1])) for chosen, _ in levels], 1),
        torch.stack(
            [pad(scores, (0, widest - scores.shape[1]), value=NEVER) for _, scores in levels], 1
        ),
    )


def _best_in_place(scores: Tensor, count: int) -> Tensor:
    """Columns of the `count` greatest scores of each row, first ones on ties, in ascending order.

    [R, N] to [R, count] int64.
    """
    if count == scores.shape[1]:
        return torch.arange(count, device=scores.device).expand(scores.shape[0], -1)
    best = scores.sort(dim=1, descending=True, stable=True).indices[:, :count]
    # A radix sort on the device takes half the time for half the bits.
    return best.int().sort(dim=1).values.long()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Pool:
    """All nodes that the sweep kept, by depth and then in lexicographic order of their paths.

    All are [R, M] with M >= B; columns that hold no node have the score -inf.
    """

    tokens: Tensor
    scores: Tensor
    depths: Tensor
    parents: Tensor
    """Place of the parent in the pool; 0, the root's place, for the root."""


def _pool(roots: Tensor, tokens: Tensor, chosen: Tensor, scores: Tensor, budget: int) -> _Pool:
    """The root and the sweep's nodes with the links between them."""
    _, depth, width = chosen.shape
    depths = torch.arange(1, depth + 1, device=roots.device)[:, None]
    starts = (1 + (depths - 2) * width).clamp(min=0)
    num_candidates = tokens.shape[2]
    parents = starts + chosen // num_candidates
    drafted = tokens[:, :depth].gather(2, chosen % num_candidates).flatten(1)
    missing = max(0, budget - 1 - depth * width)
    return _Pool(
        tokens=pad(torch.cat([roots[:, None], drafted], 1), (0, missing)),
        scores=pad(pad(scores.flatten(1), (1, 0)), (0, missing), value=NEVER),
        depths=pad(depths.expand_as(chosen).flatten(1), (1, missing)),
        parents=pad(parents.flatten(1), (1, missing)),
    )


def _take_best(
    pool: _Pool, budget: int, num_allowed: Tensor, valid: Tensor, *, max_depth: int
) -> DeviceTrees:
    """The best nodes of the pool, in order, padded to `budget` rows."""
    # The pool is in order of depth and then of path, so that a stable sort settles every tie.
    scores, order = pool.scores.sort(dim=1, descending=True, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    row_of = torch.empty_like(order).scatter_(1, order, places)
    scores, best = scores[:, :budget], order[:, :budget]
    num_nodes = torch.minimum((scores > NEVER).sum(1), num_allowed)
    rows = torch.arange(budget, device=best.device)
    padding = rows >= num_nodes[:, None]
    parents = row_of.gather(1, pool.parents.gather(1, best))
    return DeviceTrees(
        tokens=pool.tokens.gather(1, best).masked_fill(padding, PADDING_TOKEN),
        parents=parents.masked_fill(padding | (rows == 0), NO_PARENT),
        depths=pool.depths.gather(1, best).masked_fill(padding, 0),
        scores=scores.masked_fill(padding, NEVER),
        num_nodes=num_nodes,
        valid=valid,
        max_depth=max_depth,
    )


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
