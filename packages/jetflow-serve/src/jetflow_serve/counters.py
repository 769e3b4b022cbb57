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
    nodes: int = 0
    accepted: int = 0
    moved: int = 0
    """Cache rows that were copied to follow the context."""
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    """Drafts made, by shape."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Drafts that were no tree, by reason."""

    def verified(self, tree: Tree, accepted: Accepted, branching: bool, moved: int) -> None:
        """Adds one verified request."""
        self.rounds += 1
        self.branching += branching
        self.nodes += tree.num_nodes - 1
        self.accepted += len(accepted.nodes)
        self.moved += moved
        self.accepted_by_depth.update(range(1, len(accepted.nodes) + 1))

    def drafted(self, shape: str, reason: str | None) -> None:
        """Adds one draft."""
        self.shapes[shape] += 1
        if reason is not None:
            self.reasons[reason] += 1

    def to_dict(self) -> dict[str, Any]:
        """All sums as plain numbers."""
        return {
            "rounds": self.rounds,
            "branching": self.branching,
            "nodes": self.nodes,
            "accepted": self.accepted,
            "moved": self.moved,
            "accepted_by_depth": dict(sorted(self.accepted_by_depth.items())),
            "shapes": {str(shape): count for shape, count in self.shapes.items()},
            "reasons": dict(self.reasons),
        }
