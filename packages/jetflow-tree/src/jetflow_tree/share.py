"""One node budget over many requests: each row goes where it is likeliest to be accepted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jetflow_tree.build import check_request
from jetflow_tree.candidates import Candidates
from jetflow_tree.cost import Cost, peak_size
from jetflow_tree.frontier import Expansion, Frontier
from jetflow_tree.score import Scoring
from jetflow_tree.tree import Tree, trusted_tree
from jetflow_tree.whole import check_count


def share_budget(
    roots: Sequence[int],
    candidates: Sequence[Candidates],
    budget: int,
    *,
    cost: Cost | None = None,
    fixed: float = 0.0,
    limits: Sequence[int] | None = None,
    scoring: Scoring | None = None,
) -> list[Tree]:
    """The trees of many requests that together hold the most probable nodes.

    All requests grow in one heap, so the marginal node of each has about the same chance of being
    accepted: a request whose next tokens are hard to guess leaves its rows to the others. Ties
    are settled by depth, then by the number of the request, then as in BestFirst; with one
    request the result is BestFirst's.

    Args:
        roots: Token id of each request's root.
        candidates: What the draft head proposes for each request.
        budget: Rows of all trees together, roots included.
        cost: Seconds of a verify pass by its rows over all requests. If given, the batch stops at
            the size with most expected tokens per second instead of filling the budget.
        fixed: Seconds a round costs besides, at least 0; used with ``cost`` only.
        limits: Most rows of each request's tree, at least 1 each (cache room, say).
        scoring: Reshapes each request's candidates before the trees are built.

    Returns:
        One tree a request, in the order of the requests, rows in the order of best-first.

    Raises:
        ValueError: If the lists differ in length, the budget is below the number of requests, or
            a limit is below 1.
    """
    count = len(roots)
    if len(candidates) != count or (limits is not None and len(limits) != count):
        raise ValueError(
            f"{count} roots need as many candidates and limits, got {len(candidates)} and "
            f"{count if limits is None else len(limits)}"
        )
    if not count:
        return []
    for root in roots:
        check_request(root, budget)
    if budget < count:
        raise ValueError(f"budget must hold the roots of all {count} requests, got {budget}")
    for limit in limits or ():
        check_count("limits", limit)
    tables = list(candidates) if scoring is None else [scoring(table) for table in candidates]
    trees = _grow(roots, tables, budget, limits)
    return trees if cost is None else _trim_to_peak(trees, cost, fixed)


def _grow(
    roots: Sequence[int],
    tables: Sequence[Candidates],
    budget: int,
    limits: Sequence[int] | None,
) -> list[Tree]:
    """The shared trees; a request that outgrows its limit is settled, the others grow again."""
    trees: dict[int, Tree] = {}
    growing = list(range(len(roots)))
    while growing:
        rows = Frontier([tables[r] for r in growing], None).take(budget - len(growing))
        grown = _split(rows, [roots[r] for r in growing], [tables[r] for r in growing])
        trees.update(zip(growing, grown, strict=True))
        if limits is None:
            break
        over = [r for r in growing if trees[r].num_nodes > limits[r]]
        if not over:
            break
        for r in over:
            trees[r] = trees[r].trim(limits[r])
            budget -= limits[r]
        growing = [r for r in growing if r not in over]
    return [trees[r] for r in range(len(roots))]


def _split(rows: Expansion, roots: Sequence[int], tables: Sequence[Candidates]) -> list[Tree]:
    owners = list(range(len(roots)))
    for parent in rows.parents[len(roots) :]:
        owners.append(owners[parent])
    owner = np.array(owners)
    parents, levels = np.array(rows.parents), np.array(rows.levels)
    indices, scores = np.array(rows.indices), 0.0 - np.array(rows.negated)
    trees = []
    for number, (root, table) in enumerate(zip(roots, tables, strict=True)):
        own = np.flatnonzero(owner == number)
        depths = levels[own] - levels[number]
        tokens = np.concatenate([[root], table.tokens[depths[1:] - 1, indices[own[1:]]]])
        links = np.searchsorted(own, parents[own])
        links[0] = -1
        trees.append(
            trusted_tree(
                tokens.astype(np.int64),
                links.astype(np.int32),
                depths.astype(np.int32),
                scores[own],
            )
        )
    return trees


def _trim_to_peak(trees: Sequence[Tree], cost: Cost, fixed: float) -> list[Tree]:
    owner = np.concatenate([np.full(tree.num_nodes, i) for i, tree in enumerate(trees)])
    scores = np.concatenate([tree.scores for tree in trees])
    depths = np.concatenate([tree.depths for tree in trees])
    # Roots are paid for in any case, so they lead; rows of one tree keep their order.
    order = np.lexsort((owner, depths, -scores, depths > 0))
    size = peak_size(scores[order], len(trees), cost, fixed)
    kept = np.bincount(owner[order[:size]], minlength=len(trees))
    return [tree.trim(int(rows)) for tree, rows in zip(trees, kept, strict=True)]
