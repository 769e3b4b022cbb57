"""A second pass of the head over a drafted tree: each node's children, given the path to it.

The first pass knows no token after the root. Once a tree is drafted its tokens are known, and one
more pass over all of them, under the tree's causal mask, tells for every node what follows the path
that leads to it. Each node has two slots: one holds its token and is seen by what stands below it,
one is a mask at the next depth and gives the distribution of its children. A node's mask slot thus
sees what the mask slot of a prefix-filled block sees (``prefix``), and gives the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jetflow_tree import Tree
from jetflow_tree.mask import ancestor_matrix
from torch import Tensor

from jetflow_core.head.context import KeysValues, PaddedContext
from jetflow_core.head.model import DraftHead
from jetflow_core.head.path import PathTerm
from jetflow_core.head.prefix import check_prefix_filled, mask_rows, token_rows


@dataclass(frozen=True, slots=True, eq=False)
class PaddedTrees:
    """Trees of several requests, padded to one number of rows N.

    Padding repeats the root as a row that nothing else sees.

    Attributes:
        tokens: int64 ``[R, N]``.
        depths: int64 ``[R, N]``.
        ancestors: bool ``[R, N, N]``; which rows (columns) a row sees, itself included.
    """

    tokens: Tensor
    depths: Tensor
    ancestors: Tensor

    @classmethod
    def of(cls, trees: Sequence[Tree], rows: int, device: torch.device) -> PaddedTrees:
        """``trees`` on ``device``.

        Raises:
            ValueError: a tree has more than ``rows`` rows, or there is none.
        """
        largest = max((tree.num_nodes for tree in trees), default=0)
        if not 1 <= largest <= rows:
            raise ValueError(f"trees of up to {largest} rows do not fit {rows} rows")
        tokens = np.empty((len(trees), rows), dtype=np.int64)
        depths = np.zeros((len(trees), rows), dtype=np.int64)
        ancestors = np.zeros((len(trees), rows, rows), dtype=np.bool_)
        ancestors[:, np.arange(rows), np.arange(rows)] = True
        for i, tree in enumerate(trees):
            count = tree.num_nodes
            tokens[i, :count], tokens[i, count:] = tree.tokens, tree.tokens[0]
            depths[i, :count] = tree.depths
            ancestors[i, :count, :count] = ancestor_matrix(tree)
        return cls(*(torch.from_numpy(each).to(device) for each in (tokens, depths, ancestors)))


def second_pass(
    head: DraftHead,
    embedding: Tensor,
    trees: PaddedTrees,
    context: Sequence[KeysValues],
    lengths: Tensor,
    last: Tensor,
) -> Tensor:
    """For each node the row that predicts its children, given the whole path to it.

    Args:
        head: the draft head, trained with prefix-filled blocks.
        embedding: the target's embedding ``[vocab, hidden]`` in the head's type.
        trees: one a request, as the first pass drafted them.
        context: each layer's keys and values ``[R, kv_heads, T, dim]``, from
            ``DraftHead.context_keys_values``; finite past the requests' own columns.
        lengths: int64 ``[R]``, columns of each context that belong to it; the root stands there.
        last: ``[R, hidden]``, the last fused row of each context, zeros without one; a head with an
            input bridge reads it.

    Returns:
        ``[R, N, hidden]``, ready for the target's lm_head. Rows of nodes at the head's deepest
        depth, which can have no children, and of padding are to be ignored.

    Raises:
        ValueError: the head was not trained for it.
    """
    check_prefix_filled(head, "a second pass")
    below = trees.depths + 1
    block = torch.cat(
        [
            token_rows(head, embedding, trees.tokens, trees.depths),
            # The deepest nodes have no slot below them.
            mask_rows(head, embedding, below.clamp(max=head.config.max_depth)),
        ],
        dim=1,
    )
    block = head.bridged(block, embedding[trees.tokens[:, 0]], last)
    positions = lengths[:, None] + torch.cat([trees.depths, below], dim=1)
    columns = torch.arange(context[0][0].shape[2], device=lengths.device)
    mask = _mask(trees.ancestors, columns < lengths[:, None])
    hidden = head.run_block(block, positions, PaddedContext(context, mask[:, None]))
    return hidden[:, trees.tokens.shape[1] :]


def _mask(ancestors: Tensor, visible: Tensor) -> Tensor:
    """Bool ``[R, 2 N, T + 2 N]``: token slots see paths, mask slots see theirs and themselves."""
    rows = ancestors.shape[1]
    itself = torch.eye(rows, dtype=torch.bool, device=ancestors.device).expand_as(ancestors)
    tokens = torch.cat([ancestors, torch.zeros_like(ancestors)], dim=2)
    masks = torch.cat([ancestors, itself], dim=2)
    context = visible[:, None].expand(-1, 2 * rows, -1)
    return torch.cat([context, torch.cat([tokens, masks], dim=1)], dim=2)


def child_candidates(
    path: PathTerm | None,
    embedding: Tensor,
    tokens: Tensor,
    hidden: Tensor,
    logits: Tensor,
    width: int,
) -> tuple[Tensor, Tensor]:
    """Each node's likeliest children with their log-probabilities over the whole vocabulary.

    A node's token is known, as the root is at depth 1: a path term is added exactly.

    Args:
        path: the path term of the head that made ``hidden``; None leaves it out.
        embedding: the target's embedding ``[vocab, hidden]``.
        tokens: int64 ``[..., N]``, the nodes' own tokens.
        hidden: ``[..., N, hidden]`` from ``second_pass``.
        logits: ``[..., N, vocab]`` of these rows, in the type of the result.
        width: children of a node, K; at most the vocabulary.

    Returns:
        int64 and floating ``[..., N, K]``, best first; never above 0, what lacks to one belongs to
        all other tokens.
    """
    if path is not None:
        vectors = path.parent_vectors(embedding[tokens], hidden)
        logits = logits + path.bias(vectors).to(logits.dtype)
    best, found = logits.topk(min(width, logits.shape[-1]), dim=-1)
    return found, (best - logits.logsumexp(-1, keepdim=True)).clamp(max=0.0)
