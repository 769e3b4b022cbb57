"""Launches of the tree builders, and the room that they need."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.round.build_sizes import MOST_SORTED, bound_sizes, sweep_sizes, tile_sizes
from jetflow_kernels.round.checks import device_of, power_of_two
from jetflow_kernels.round.trees import num_words

WARPS = 8
"""Warps of the kernels that work on whole depths."""


def sweep(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    *results: Tensor,
) -> None:
    """Builds the best trees depth by depth; arguments and results are those of the op."""
    from jetflow_kernels.round.build_bound_kernel import check_and_bound_kernel
    from jetflow_kernels.round.build_sweep_kernel import sweep_kernel

    requests, depth, parents, width = log_probs.shape
    capacity = results[0].shape[1]
    device = tokens.device
    sizes = sweep_sizes(capacity, depth, width)
    with device_of(sweep_kernel, tokens):
        good = torch.empty(requests, depth, dtype=torch.int32, device=device)
        scales = torch.empty(requests, dtype=torch.float64, device=device)
        costs = torch.empty(requests, 2, sizes["ROOM"], dtype=torch.float64, device=device)
        marks = torch.empty(requests, 3, sizes["ROOM"], dtype=torch.int32, device=device)
        indices = torch.empty(requests, capacity, dtype=torch.int32, device=device)
        check_and_bound_kernel[(requests, depth + 1)](
            tokens, log_probs, budgets, good, scales, capacity, depth, parents, width,
            **bound_sizes(depth, parents, width), num_warps=WARPS,
        )  # fmt: skip
        sweep_kernel[(requests,)](
            tokens, log_probs, good, scales, costs, marks, roots, budgets, root_positions, indices,
            *results, capacity, depth, parents, width, num_words(capacity),
            **sizes, num_warps=WARPS,
        )  # fmt: skip


def node_by_node(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    *results: Tensor,
) -> None:
    """Builds the best trees one node after the other; arguments as for ``sweep``."""
    from jetflow_kernels.round.build_kernel import best_first_kernel

    requests, depth, parents, width = log_probs.shape
    capacity = results[0].shape[1]
    with device_of(best_first_kernel, tokens):
        is_sorted = width <= MOST_SORTED
        good, indices, records, stats = _prepare(tokens, log_probs, capacity, is_sorted)
        best_first_kernel[(requests,)](
            tokens, log_probs, good, records, stats, roots, budgets, root_positions, indices,
            *results, capacity, depth, parents, width, num_words(capacity),
            **tile_sizes(capacity, depth, width), SORTED=is_sorted, num_warps=1,
        )  # fmt: skip


def all_children(
    children: int,
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    *results: Tensor,
) -> None:
    """Builds the trees of the published builder; the others as for ``sweep``.

    Args:
        children: of an expanded row.
        tokens: as the op's.
        log_probs: likewise.
        roots: likewise.
        budgets: likewise.
        root_positions: likewise.
        results: likewise.
    """
    from jetflow_kernels.round.expand_kernel import all_children_kernel

    requests, depth, parents, width = log_probs.shape
    capacity = results[0].shape[1]
    with device_of(all_children_kernel, tokens):
        good, indices, _, _ = _prepare(tokens, log_probs, capacity, False)
        all_children_kernel[(requests,)](
            tokens, log_probs, good, roots, budgets, root_positions, indices, *results,
            capacity, depth, parents, width, min(children, width), num_words(capacity),
            **tile_sizes(capacity, depth, width), num_warps=1,
        )  # fmt: skip


def _prepare(
    tokens: Tensor, log_probs: Tensor, capacity: int, is_sorted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the builders need beforehand.

    Returns:
        good: [R, D] int32, which depths are within the contract.
        indices: [R, B] int32, room for candidate indices.
        records: [R, D, P, K, 2] int64, the lines of candidates sorted, if asked for.
        stats: [R, D, P, 2] float64, of the sorted lines.
    """
    from jetflow_kernels.round.build_kernel import check_kernel

    requests, depth, parents, width = log_probs.shape
    device = tokens.device
    good = torch.empty(requests, depth, dtype=torch.int32, device=device)
    lines = (requests, depth, parents) if is_sorted else (0, 0, 0)
    records = torch.empty(*lines, width, 2, dtype=torch.int64, device=device)
    stats = torch.empty(*lines, 2, dtype=torch.float64, device=device)
    if depth:
        check_kernel[(requests, depth, parents if is_sorted else 1)](
            tokens, log_probs, good, records, stats, depth, parents, width,
            WIDTH=power_of_two(width), PARENTS=power_of_two(parents), SORTED=is_sorted,
            num_warps=1 if width <= 16 else 4,
        )  # fmt: skip
    return good, torch.empty(requests, capacity, dtype=torch.int32, device=device), records, stats
