"""Between numpy values and device tensors. Going to numpy waits for the device."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from jetflow_tree.accept import Accepted
from jetflow_tree.candidates import Candidates
from jetflow_tree.torch.trees import NO_PARENT, PADDING_TOKEN, DeviceTrees
from jetflow_tree.torch.walk import DeviceAccepted
from jetflow_tree.tree import Tree


def to_trees(trees: DeviceTrees) -> list[Tree]:
    """The trees as numpy trees without their padding. Waits for the device.

    A request with `valid` False comes back as its root alone.
    """
    tokens = trees.tokens.cpu().numpy()
    parents = trees.parents.int().cpu().numpy()
    depths = trees.depths.int().cpu().numpy()
    scores = trees.scores.cpu().double().numpy()
    return [
        Tree(
            tokens=tokens[request, :rows],
            parents=parents[request, :rows],
            depths=depths[request, :rows],
            scores=scores[request, :rows],
        )
        for request, rows in enumerate(trees.num_nodes.tolist())
    ]


def to_accepted(accepted: DeviceAccepted) -> list[Accepted]:
    """The accepted paths as numpy-side values. Waits for the device."""
    counts = accepted.num_accepted.tolist()
    rows = accepted.rows.tolist()
    tokens = accepted.tokens.tolist()
    return [
        Accepted(
            nodes=tuple(rows[request][:count]),
            tokens=tuple(tokens[request][:count]),
            correction=correction,
        )
        for request, (count, correction) in enumerate(
            zip(counts, accepted.correction.tolist(), strict=True)
        )
    ]


def from_trees(
    trees: Sequence[Tree], budget: int, *, max_depth: int, device: torch.device | str
) -> DeviceTrees:
    """Numpy trees, built by any builder, padded to `budget` rows on a device.

    Raises:
        ValueError: There is no tree, or one has more rows than `budget` or is deeper than
            `max_depth`.
    """
    if not trees:
        raise ValueError("trees must hold at least one tree, got none")
    for index, tree in enumerate(trees):
        if tree.num_nodes > budget:
            raise ValueError(f"tree {index} has {tree.num_nodes} rows, the budget is {budget}")
        if tree.depths.max() > max_depth:
            raise ValueError(f"tree {index} is {tree.depths.max()} deep, max_depth is {max_depth}")
    shape = (len(trees), budget)
    tokens = np.full(shape, PADDING_TOKEN, dtype=np.int64)
    parents = np.full(shape, NO_PARENT, dtype=np.int64)
    depths = np.zeros(shape, dtype=np.int64)
    scores = np.full(shape, -np.inf)
    for index, tree in enumerate(trees):
        rows = tree.num_nodes
        tokens[index, :rows] = tree.tokens
        parents[index, :rows] = tree.parents
        depths[index, :rows] = tree.depths
        scores[index, :rows] = tree.scores
    return DeviceTrees(
        tokens=torch.from_numpy(tokens).to(device),
        parents=torch.from_numpy(parents).to(device),
        depths=torch.from_numpy(depths).to(device),
        scores=torch.from_numpy(scores).to(device),
        num_nodes=torch.tensor([tree.num_nodes for tree in trees], device=device),
        valid=torch.ones(len(trees), dtype=torch.bool, device=device),
        max_depth=max_depth,
    )


def stack_candidates(
    candidates: Sequence[Candidates], *, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """One batch of requests that differ in depth, width or kind of table.

    Returns:
        `tokens` [R, D, K] int64 and `log_probs` [R, D, P, K] float64 on the device, as
        `best_first` takes them: D and K are the greatest of all, P is 1 if no request's scores
        depend on the parent, and what a request lacks is -inf.

    Raises:
        ValueError: There are no candidates.
    """
    if not candidates:
        raise ValueError("candidates must hold at least one request, got none")
    depth = max(each.depth for each in candidates)
    width = max(each.width for each in candidates)
    conditional = any(each.path_conditioned for each in candidates)
    tokens = np.full((len(candidates), depth, width), PADDING_TOKEN, dtype=np.int64)
    log_probs = np.full((len(candidates), depth, width if conditional else 1, width), -np.inf)
    for index, each in enumerate(candidates):
        tokens[index, : each.depth, : each.width] = each.tokens
        parents = each.width if each.path_conditioned else None
        log_probs[index, : each.depth, :parents, : each.width] = each.log_probs
    return torch.from_numpy(tokens).to(device), torch.from_numpy(log_probs).to(device)
