"""The trees of one step: which rows of the batch they are, where their rows stand, what they see.

A scheduler knows drafts as a list of tokens and cuts it from the end. Rows come parents first, so
what is left is still a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jetflow_tree import Accepted, Tree, ancestor_matrix
from numpy.typing import NDArray


class DraftsDiffer(RuntimeError):
    """The engine verifies other tokens than were drafted; the message names the request."""


@dataclass(frozen=True, slots=True)
class Staged:
    """One request's rows in the batch of a step."""

    request: str
    first: int
    """Row of the batch that holds the tree's root."""
    context: int
    """Tokens of the request whose keys and values are in the cache before this step."""
    tree: Tree

    @property
    def rows(self) -> slice:
        """The tree's rows of the batch."""
        return slice(self.first, self.first + self.tree.num_nodes)

    @property
    def branches(self) -> bool:
        """Whether some row sees other rows than all those before it."""
        return bool((self.tree.parents != np.arange(-1, self.tree.num_nodes - 1)).any())

    def positions(self) -> NDArray[np.int64]:
        """[N] the place in the text of each row: context and depth."""
        return self.context + self.tree.depths.astype(np.int64)

    def sight(self) -> NDArray[np.bool_]:
        """[N, N] which rows of the tree each row sees; all see the whole context."""
        return ancestor_matrix(self.tree)


def stage(
    requests: Sequence[str],
    scheduled: Sequence[int],
    contexts: Sequence[int],
    verified: Mapping[str, Sequence[int]],
    drafts: Mapping[str, Tree],
) -> list[Staged | None]:
    """The tree of each request of a batch; None where only committed tokens are computed.

    Args:
        requests: names, in the order of the batch.
        scheduled: rows of each.
        contexts: cached tokens of each before the step.
        verified: drafted tokens that the engine verifies, by request.
        drafts: what was drafted, by request.

    Returns:
        One entry a request.

    Raises:
        DraftsDiffer: the verified tokens are no beginning of what was drafted.
    """
    entries: list[Staged | None] = []
    first = 0
    for name, rows, context in zip(requests, scheduled, contexts, strict=True):
        tokens = verified.get(name, ())
        entries.append(_staged(name, first, context, rows, tokens, drafts) if tokens else None)
        first += rows
    return entries


def _staged(
    name: str,
    first: int,
    context: int,
    rows: int,
    tokens: Sequence[int],
    drafts: Mapping[str, Tree],
) -> Staged:
    tree = drafts.get(name)
    if tree is None or rows != 1 + len(tokens) or rows > tree.num_nodes:
        drafted = 0 if tree is None else tree.num_nodes - 1
        raise DraftsDiffer(
            f"request {name}: {rows} rows with {len(tokens)} drafted tokens are verified, "
            f"{drafted} were drafted"
        )
    cut = tree.trim(rows)
    if cut.tokens[1:].tolist() != list(tokens):
        raise DraftsDiffer(f"request {name}: other tokens are verified than were drafted")
    return Staged(name, first, context, cut)


def moves(entry: Staged, accepted: Accepted) -> list[tuple[int, int]]:
    """Rows of the batch to copy from and to, so that the accepted path follows the context.

    The root stays; the accepted node of depth d belongs where row d stands.
    """
    return [
        (entry.first + node, entry.first + depth)
        for depth, node in enumerate(accepted.nodes, start=1)
        if node != depth
    ]
