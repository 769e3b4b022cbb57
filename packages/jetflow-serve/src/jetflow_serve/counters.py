"""What trees did since the engine started: nodes, depths, accepted tokens, and who got no tree."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from jetflow_tree import Accepted, Tree


@dataclass(slots=True)
class Counters:
    """Running sums; one step adds one entry for each request that was verified or decoded."""

    rounds: int = 0
    """Requests times steps in which tokens were drafted and verified."""
    branching: int = 0
    """Those of them whose tree was no chain."""
    plain: int = 0
    """Requests times steps that picked a token and had nothing drafted."""
    nodes: int = 0
    accepted: int = 0
    moved: int = 0
    """Cache rows that were copied to follow the context."""
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    """Rounds by rows of the verify pass."""
    depths: Counter[int] = field(default_factory=Counter)
    """Rounds by their tree's deepest depth."""
    shapes: Counter[str] = field(default_factory=Counter)
    """Drafts made, by shape."""
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Drafts that were no tree, by shape and reason."""
    auto_steps: Counter[str] = field(default_factory=Counter)
    """Choices of budget ``auto``, by why."""
    batch: tuple[int, int] = (0, 0)
    """Requests of the newest drafts, and rows of their trees."""

    def verified(self, tree: Tree, accepted: Accepted, branching: bool, moved: int) -> None:
        """Adds one verified request."""
        self.counted(
            rows=tree.num_nodes,
            depth=int(tree.depths.max()),
            accepted=len(accepted.nodes),
            branching=branching,
            moved=moved,
        )

    def counted(self, *, rows: int, depth: int, accepted: int, branching: bool, moved: int) -> None:
        """Adds one verified request by its numbers.

        Args:
            rows: of its tree, root included.
            depth: the tree's deepest.
            accepted: drafted tokens that were kept.
            branching: whether the tree was no chain.
            moved: cache rows that were copied.
        """
        self.rounds += 1
        self.branching += branching
        self.nodes += rows - 1
        self.accepted += accepted
        self.moved += moved
        self.accepted_by_depth.update(range(1, accepted + 1))
        self.rows[rows] += 1
        self.depths[depth] += 1

    def decoded(self) -> None:
        """Adds one request that picked a token without drafts."""
        self.plain += 1

    def drafted(self, shape: str, reason: str | None) -> None:
        """Adds one draft."""
        self.shapes[shape] += 1
        if reason is not None:
            self.fallbacks[shape, reason] += 1

    def to_dict(self) -> dict[str, Any]:
        """All sums as plain numbers."""
        reasons: Counter[str] = Counter()
        for (_, reason), count in self.fallbacks.items():
            reasons[reason] += count
        return {
            "rounds": self.rounds,
            "branching": self.branching,
            "plain": self.plain,
            "nodes": self.nodes,
            "accepted": self.accepted,
            "moved": self.moved,
            "accepted_by_depth": dict(sorted(self.accepted_by_depth.items())),
            "rows": dict(sorted(self.rows.items())),
            "depths": dict(sorted(self.depths.items())),
            "shapes": {str(shape): count for shape, count in self.shapes.items()},
            "reasons": dict(reasons),
            "auto": dict(self.auto_steps),
        }
