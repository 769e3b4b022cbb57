"""Plain references of the tree builders: heaps and lists on the host, one node at a time."""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush

import torch
from torch import Tensor

from jetflow_kernels.round.ancestors import pack_ancestors_reference
from jetflow_kernels.round.build import _check, _into
from jetflow_kernels.round.trees import TreeBatch

# (cost, depth, path of candidate indices, row of the parent): the order of nodes, smallest first.
_Node = tuple[float, int, tuple[int, ...], int]


def build_tree_reference(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    *,
    capacity: int,
    out: TreeBatch | None = None,
) -> TreeBatch:
    """What ``build_tree`` returns, on any device, one node at a time on the host.

    Args:
        tokens: as in ``build_tree``, as all the others.
        log_probs: see there.
        roots: see there.
        budgets: see there.
        root_positions: see there.
        capacity: see there.
        out: see there.

    Returns:
        The trees.

    Raises:
        ValueError: as there, except that any device will do.
    """
    _check(tokens, log_probs, roots, budgets, root_positions, capacity)
    trees = _into(out, tokens, root_positions, capacity)
    for request in range(tokens.shape[0]):
        table = log_probs[request].double().tolist()
        rows: list[_Node] = [(0.0, 0, (), -1)]
        limit = _limit(tokens[request], log_probs[request], int(budgets[request]), capacity)
        waiting = _children(table, rows[0], 0)
        heapify(waiting)
        while waiting and len(rows) < limit:
            node = heappop(waiting)
            for child in _children(table, node, len(rows)):
                heappush(waiting, child)
            rows.append(node)
        _write(trees, request, tokens, rows, roots, limit > 0)
    _finish(trees, root_positions)
    return trees


def build_all_children_reference(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    *,
    capacity: int,
    width: int = 7,
    out: TreeBatch | None = None,
) -> TreeBatch:
    """What ``build_all_children`` returns, on any device, one node at a time on the host.

    Args:
        tokens: as in ``build_all_children``, as all the others.
        log_probs: see there.
        roots: see there.
        budgets: see there.
        root_positions: see there.
        capacity: see there.
        width: see there.
        out: see there.

    Returns:
        The trees.

    Raises:
        ValueError: as there, except that any device will do.
    """
    _check(tokens, log_probs, roots, budgets, root_positions, capacity)
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    trees = _into(out, tokens, root_positions, capacity)
    for request in range(tokens.shape[0]):
        table = log_probs[request].double().tolist()
        rows: list[_Node] = [(0.0, 0, (), -1)]
        limit = _limit(tokens[request], log_probs[request], int(budgets[request]), capacity)
        open_rows = {0}
        while open_rows and len(rows) < limit:
            row = min(open_rows, key=lambda i: rows[i][:3])
            open_rows.remove(row)
            line = _line(table, rows[row])
            best = sorted(_children(table, rows[row], row), key=lambda n: (-line[n[2][-1]], n[2]))
            for node in best[: min(width, limit - len(rows))]:
                open_rows.add(len(rows))
                rows.append(node)
        _write(trees, request, tokens, rows, roots, limit > 0)
    _finish(trees, root_positions)
    return trees


def _limit(tokens: Tensor, log_probs: Tensor, budget: int, capacity: int) -> int:
    """Rows that a request may have; 0 where it is outside the contract."""
    if not 1 <= budget <= capacity or not bool((log_probs <= 0).all()):
        return 0
    possible = (log_probs > -math.inf).any(dim=1)
    for named, counts in zip(tokens.tolist(), possible.tolist(), strict=True):
        real = [token for token, counted in zip(named, counts, strict=True) if counted]
        if len(set(real)) < len(real) or any(token < 0 for token in real):
            return 0
    return budget


def _line(table: list[list[list[float]]], node: _Node) -> list[float]:
    """Log-probabilities below a node, none at the last depth."""
    _, depth, path, _ = node
    if depth == len(table):
        return []
    lines = table[depth]
    return lines[path[-1] if path and len(lines) > 1 else 0]


def _children(table: list[list[list[float]]], node: _Node, row: int) -> list[_Node]:
    """All children of a node that can ever be nodes; ``row`` is its row."""
    cost, depth, path, _ = node
    found = []
    for index, log_prob in enumerate(_line(table, node)):
        if cost - log_prob < math.inf:
            found.append((cost - log_prob, depth + 1, (*path, index), row))
    return found


def _write(
    trees: TreeBatch,
    request: int,
    tokens: Tensor,
    rows: list[_Node],
    roots: Tensor,
    valid: bool,
) -> None:
    named = [int(roots[request])]
    named += [int(tokens[request, depth - 1, path[-1]]) for _, depth, path, _ in rows[1:]]
    for tensor, values, padding in (
        (trees.tokens, named, 0.0),
        (trees.parents, [row[3] for row in rows], -1.0),
        (trees.depths, [row[1] for row in rows], 0.0),
        (trees.scores, [0.0 - row[0] for row in rows], -math.inf),
    ):
        tensor[request] = padding
        tensor[request, : len(rows)] = torch.tensor(values, dtype=tensor.dtype)
    trees.num_nodes[request] = len(rows)
    trees.valid[request] = valid


def _finish(trees: TreeBatch, root_positions: Tensor) -> None:
    trees.positions.copy_(root_positions[:, None] + trees.depths)
    words, _ = pack_ancestors_reference(trees.parents, trees.num_nodes)
    trees.ancestors.copy_(words)
