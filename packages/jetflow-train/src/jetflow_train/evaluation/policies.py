"""What is compared: the chain, exact best-first trees, and the reference's all-children trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetflow_tree import AllChildren, BestFirst, Candidates, Chain, Tree, TreeBuilder

CHAIN, TREE, ALL_CHILDREN = "chain", "tree", "all-children"
OWN, BASE = "head", "base"
"""A head's candidates as it drafts them; and those of its base alone, the path term left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """One way to grow trees."""

    kind: str
    budget: int
    """Rows of a tree, root included."""
    builder: TreeBuilder

    @property
    def name(self) -> str:
        """The kind with its budget, as ``jetflow bench decode`` calls it; a chain has no choice."""
        return self.kind if self.kind == CHAIN else f"{self.kind}-{self.budget}"

    def build(self, root: int, candidates: Candidates) -> Tree:
        """The tree below ``root``."""
        return self.builder.build(root, candidates, self.budget)


def exact_policies(budgets: Sequence[int], depth: int) -> tuple[Policy, ...]:
    """The chain of a head that goes to ``depth``, and exact best-first at each budget."""
    chain = Policy(kind=CHAIN, budget=depth + 1, builder=Chain())
    trees = [Policy(kind=TREE, budget=budget, builder=BestFirst()) for budget in budgets]
    return (chain, *trees)


def all_policies(budgets: Sequence[int], depth: int) -> tuple[Policy, ...]:
    """``exact_policies``, and the reference's builder at the same budgets."""
    others = [Policy(kind=ALL_CHILDREN, budget=b, builder=AllChildren()) for b in budgets]
    return (*exact_policies(budgets, depth), *others)
