"""The same budget in every round."""

from __future__ import annotations

from collections.abc import Sequence

from jetflow_tree import Accepted, Candidates, Tree, TreeBuilder

from jetflow_core.protocols import Phases


class FixedPlanner:
    """Trees of one budget, from drafts of one depth.

    Args:
        builder: grows the trees.
        budget: rows of one request's tree, root included; 1 is plain decoding, without a draft.
        depth: depth to draft.

    Raises:
        ValueError: ``budget`` or ``depth`` is out of range.
    """

    def __init__(self, builder: TreeBuilder, *, budget: int, depth: int) -> None:
        if budget < 1:
            raise ValueError(f"budget {budget} is out of range: at least 1 (plain decoding)")
        if depth < 0:
            raise ValueError(f"depth {depth} is out of range: at least 0 (plain decoding)")
        self._builder, self._budget, self._depth = builder, budget, depth

    def begin(self) -> None:
        """Nothing: every text gets the same."""

    def depth(self, requests: int) -> int:
        """The fixed depth; no deeper than the budget has drafted nodes."""
        return min(self._depth, self._budget - 1)

    def grow(
        self, roots: Sequence[int], candidates: Sequence[Candidates], max_depths: Sequence[int]
    ) -> list[Tree]:
        """One tree of the fixed budget a request."""
        return [
            self._builder.build(root, drafted.truncate(min(drafted.depth, deepest)), self._budget)
            for root, drafted, deepest in zip(roots, candidates, max_depths, strict=True)
        ]

    def learn(self, trees: Sequence[Tree], accepted: Sequence[Accepted], phases: Phases) -> None:
        """Nothing: the budget is fixed."""
