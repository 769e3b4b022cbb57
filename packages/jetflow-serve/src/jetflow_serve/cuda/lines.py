"""The newest tree of every request on the device, and the walk along it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jetflow_core.rounds import AcceptedBatch, RoundOps, TreeBatch
from torch import Tensor

from jetflow_serve.leading_rows import chain_words, words_for


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lines:
    """What R requests verify, a line each; C is the most rows of a tree."""

    tokens: Tensor
    """int32 ``[R, C]``."""
    parents: Tensor
    """int32 ``[R, C]``."""
    depths: Tensor
    """int32 ``[R, C]``; those of a chain for a request without a tree."""
    ancestors: Tensor
    """int64 ``[R, C, W]``, likewise."""
    nodes: Tensor
    """int32 ``[R]``: rows of each tree that may be kept; 1 for a request without one."""


class TreeLines:
    """The newest tree of each request, a line for each of vLLM's request slots.

    Args:
        slots: requests at a time.
        rows: C, most rows of a tree, root included.
        device: where the lines lie.
    """

    def __init__(self, slots: int, rows: int, device: torch.device) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.rows, self.words = rows, words_for(rows)
        self._tokens, self._parents, self._depths = (zeros(slots, rows) for _ in range(3))
        self._ancestors = zeros(slots, rows, self.words, dtype=torch.int64)
        self._nodes = zeros(slots)
        self._chain_depths = torch.arange(rows, dtype=torch.int32, device=device)
        self._chain_words = torch.from_numpy(chain_words(rows)).to(device)

    def put(self, slots: Tensor, trees: TreeBatch) -> None:
        """Keeps the trees of the requests in int64 ``slots`` ``[R]``."""
        self._tokens[slots], self._parents[slots] = trees.tokens, trees.parents
        self._depths[slots], self._ancestors[slots] = trees.depths, trees.ancestors
        self._nodes[slots] = trees.num_nodes

    def take(self, slots: Tensor, scheduled: Tensor, drafted: Tensor) -> Lines:
        """What requests verify.

        Args:
            slots: int64 ``[R]``.
            scheduled: int32 ``[R]``, their rows in the batch; a tree may have been cut.
            drafted: bool ``[R]``, whether the rows are a tree's.
        """
        wide = drafted[:, None]
        return Lines(
            tokens=self._tokens[slots],
            parents=self._parents[slots],
            depths=torch.where(wide, self._depths[slots], self._chain_depths),
            ancestors=torch.where(wide[..., None], self._ancestors[slots], self._chain_words),
            nodes=torch.where(drafted, torch.minimum(self._nodes[slots], scheduled), 1).int(),
        )


def walk_lines(
    ops: RoundOps,
    lines: Lines,
    picks: Tensor,
    starts: Tensor,
    *,
    depth: int,
    invalid: Tensor | None = None,
) -> AcceptedBatch:
    """Walks every tree along the target's picks.

    Args:
        ops: the steps of a round.
        lines: what is verified.
        picks: int64 ``[L]``, the target's token after each row that has logits.
        starts: int32 ``[R + 1]``, first of them of each request, and L.
        depth: most rows that may be kept of a tree.
        invalid: bool ``[L]``, rows that a grammar forbids; the first ends its tree.
    """
    rows = torch.arange(lines.tokens.shape[1], device=picks.device)
    places = (starts[:-1, None] + rows).clamp(max=picks.shape[0] - 1)
    nodes = lines.nodes
    if invalid is not None:
        inside = rows < nodes[:, None]
        legal = torch.where(invalid[places] & inside, rows, rows.shape[0]).amin(1).clamp(min=1)
        nodes = torch.minimum(nodes, legal.int())
    return ops.accept_walk(lines.tokens, lines.parents, nodes, picks[places].int(), max_depth=depth)


def paths_first(paths: AcceptedBatch, starts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Where vLLM's first rows of each request find those of its accepted path.

    Args:
        paths: of R requests.
        starts: int32 ``[R + 1]``, first logits of each, and ``count``.
        count: L.

    Returns:
        int64 ``[L]`` twice: which row of logits stands in the place of each, and the token emitted
        there; behind a path any row, and token 0.
    """
    every = torch.arange(count, device=starts.device)
    owners = torch.searchsorted(starts[1:].long(), every, right=True)
    offset = every - starts[owners]
    steps = paths.rows.shape[1]
    at = offset.clamp(max=steps - 1)
    row, token = paths.rows[owners, at].long(), paths.tokens[owners, at].long()
    kept = (offset < steps) & (row >= 0)
    return torch.where(kept, starts[owners] + row, every), torch.where(kept, token, 0)


def only_best(log_probs: Tensor, chains: Tensor) -> Tensor:
    """Tables of which requests that want a chain have one child for each depth.

    Args:
        log_probs: ``[R, D, P, K]``.
        chains: bool ``[R]``.

    Returns:
        Like ``log_probs``, -inf elsewhere in the lines of ``chains``.
    """
    requests, depth, parents, _ = log_probs.shape
    each = torch.arange(requests, device=log_probs.device)
    kept = torch.full_like(log_probs, -torch.inf)
    parent = torch.zeros_like(each)
    for level in range(depth):
        line = parent if parents > 1 else torch.zeros_like(parent)
        best, child = log_probs[each, level, line].max(-1)
        kept[each, level, line, child] = best
        parent = child
    return torch.where(chains[:, None, None, None], kept, log_probs)
