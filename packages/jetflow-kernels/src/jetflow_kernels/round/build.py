"""Exact best-first trees on the device, equal to the heap, and the all-children trees."""

from __future__ import annotations

import torch
from torch import Tensor

from jetflow_kernels.round.build_sizes import is_swept
from jetflow_kernels.round.checks import INTEGERS, MOST_ROWS, expect, expect_range
from jetflow_kernels.round.trees import TreeBatch

MOST_CANDIDATES = 128
MOST_DEPTHS = 63
_TABLES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_RESULTS = (
    "out_tokens", "out_parents", "out_depths", "out_scores", "out_ancestors", "out_positions",
    "out_num_nodes", "out_valid",
)  # fmt: skip


def build_tree(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    *,
    capacity: int,
    out: TreeBatch | None = None,
) -> TreeBatch:
    """The trees of the most probable nodes, exactly, in two launches and without a host wait.

    Nodes come by score descending, then depth ascending, then the path of candidate indices;
    scores add up in float64. The tree of a smaller budget is a prefix of that of a larger one.

    What is out of contract (a log-probability that is NaN or above 0, a token that is negative
    or twice at a depth, a budget outside 1..B) cannot raise without waiting for the device: that
    request's tree is its root alone and its ``valid`` is False; the others are not affected.
    Candidates that are -inf below every parent stand for absent ones; their tokens do not count.

    Args:
        tokens: [R, D, K] int32 or int64, the candidates of each depth, D <= 63, K <= 128.
        log_probs: [R, D, P, K] floating, P = 1 or K: log-probability of a candidate below each
            candidate of the depth above, or of its depth alone. At the first depth line 0 is
            read.
        roots: [R], type of ``tokens``, the last committed tokens.
        budgets: [R] int32 or int64, rows of each tree, the root included.
        root_positions: [R] int32 or int64, tokens before each root.
        capacity: B, rows of every tree with padding, 1 to 256.
        out: trees of R x B rows to write into instead of new ones.

    Returns:
        The trees, on the device of ``tokens``.

    Raises:
        ValueError: a shape, type, device or size is not as said; or the tensors are not on a
            CUDA device.
    """
    shape = _check(tokens, log_probs, roots, budgets, root_positions, capacity)
    trees = _into(out, tokens, root_positions, capacity)
    if shape[0]:
        _build_tree(
            tokens.contiguous(), log_probs.contiguous(), roots.contiguous(), budgets.contiguous(),
            root_positions.contiguous(), *trees.tensors().values(),
        )  # fmt: skip
    return trees


def build_all_children(
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
    """The trees of the published builder: the best open row gets its ``width`` best children.

    Rows come in the order they are added. Everything else is as in ``build_tree``.

    Args:
        tokens: as in ``build_tree``.
        log_probs: as in ``build_tree``.
        roots: as in ``build_tree``.
        budgets: as in ``build_tree``.
        root_positions: as in ``build_tree``.
        capacity: B, rows of every tree with padding, 1 to 256.
        width: children of an expanded row, at least 1; more than K is K.
        out: trees of R x B rows to write into instead of new ones.

    Returns:
        The trees.

    Raises:
        ValueError: as in ``build_tree``, or ``width`` is below 1.
    """
    shape = _check(tokens, log_probs, roots, budgets, root_positions, capacity)
    if width < 1:
        raise ValueError(f"width must be at least 1, got {width}")
    trees = _into(out, tokens, root_positions, capacity)
    if shape[0]:
        _build_all_children(
            tokens.contiguous(), log_probs.contiguous(), roots.contiguous(), budgets.contiguous(),
            root_positions.contiguous(), width, *trees.tensors().values(),
        )  # fmt: skip
    return trees


@torch.library.custom_op("jetflow_kernels::build_tree", mutates_args=_RESULTS)
def _build_tree(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    out_tokens: Tensor,
    out_parents: Tensor,
    out_depths: Tensor,
    out_scores: Tensor,
    out_ancestors: Tensor,
    out_positions: Tensor,
    out_num_nodes: Tensor,
    out_valid: Tensor,
) -> None:
    from jetflow_kernels.round.build_launch import node_by_node, sweep

    launch = sweep if is_swept(out_tokens.shape[1], *log_probs.shape[1::2]) else node_by_node
    launch(
        tokens, log_probs, roots, budgets, root_positions, out_tokens, out_parents, out_depths,
        out_scores, out_ancestors, out_positions, out_num_nodes, out_valid,
    )  # fmt: skip


@torch.library.custom_op("jetflow_kernels::build_all_children", mutates_args=_RESULTS)
def _build_all_children(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    children: int,
    out_tokens: Tensor,
    out_parents: Tensor,
    out_depths: Tensor,
    out_scores: Tensor,
    out_ancestors: Tensor,
    out_positions: Tensor,
    out_num_nodes: Tensor,
    out_valid: Tensor,
) -> None:
    from jetflow_kernels.round.build_launch import all_children

    all_children(
        children,
        tokens, log_probs, roots, budgets, root_positions, out_tokens, out_parents, out_depths,
        out_scores, out_ancestors, out_positions, out_num_nodes, out_valid,
    )  # fmt: skip


@_build_tree.register_fake
def _(*arguments: Tensor) -> None:
    """The results are written in place; nothing is made."""


@_build_all_children.register_fake
def _(*arguments: Tensor | int) -> None:
    """The results are written in place; nothing is made."""


def _check(
    tokens: Tensor,
    log_probs: Tensor,
    roots: Tensor,
    budgets: Tensor,
    root_positions: Tensor,
    capacity: int,
) -> tuple[int, int, int]:
    """Refuses what needs no look at values; returns R, D and K."""
    device = tokens.device
    expect("tokens", tokens, (-1, -1, -1), INTEGERS, device)
    requests, depth, width = tokens.shape
    expect_range("the depth D of tokens", depth, 0, MOST_DEPTHS)
    expect_range("the candidates K of tokens", width, 0 if depth == 0 else 1, MOST_CANDIDATES)
    parents = log_probs.shape[2] if log_probs.dim() == 4 else 1
    if depth and parents not in (1, width):
        raise ValueError(f"log_probs must have 1 or {width} parent lines a depth, got {parents}")
    expect("log_probs", log_probs, (requests, depth, parents, width), _TABLES, device)
    expect("roots", roots, (requests,), (tokens.dtype,), device)
    expect("budgets", budgets, (requests,), INTEGERS, device)
    expect("root_positions", root_positions, (requests,), INTEGERS, device)
    expect_range("capacity", capacity, 1, MOST_ROWS)
    return requests, depth, width


def _into(
    out: TreeBatch | None, tokens: Tensor, root_positions: Tensor, capacity: int
) -> TreeBatch:
    requests = tokens.shape[0]
    if out is None:
        return TreeBatch.empty(
            requests,
            capacity,
            token_type=tokens.dtype,
            position_type=root_positions.dtype,
            device=tokens.device,
        )
    out.check(requests, capacity, tokens.device)
    for name, found, wanted in (
        ("tokens", out.tokens, tokens),
        ("positions", out.positions, root_positions),
    ):
        if found.dtype != wanted.dtype:
            raise ValueError(f"out.{name} must be {wanted.dtype}, got {found.dtype}")
    return out
