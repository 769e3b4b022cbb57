"""What is compared: the chain, exact trees, those of a second pass, and all-children trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetflow_tree import AllChildren, BestFirst, Candidates, Chain, Tree, TreeBuilder

CHAIN, TREE, ALL_CHILDREN, SECOND_PASS = "chain", "tree", "all-children", "second-pass"
OWN, BASE = "head", "base"
"""A head's candidates as it drafts them; and those of its base alone, the path term left out."""

HEAD_SLOTS = (
    "slots that the head runs a round at its full depth: those of its block, and for a second pass "
    "two for each row of the budget, of which one gives logits"
)
"""What reports mean by ``head_slots``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """One way to grow trees."""

    kind: str
    budget: int
    """Rows of a tree, root included."""
    builder: TreeBuilder
    """Of the tree, or of the one that a second pass then reads."""

    @property
    def name(self) -> str:
        """The kind with its budget, as ``jetflow bench decode`` calls it; a chain has no choice."""
        return self.kind if self.kind == CHAIN else f"{self.kind}-{self.budget}"

    @property
    def second_pass(self) -> bool:
        """Whether the head runs again, over the first tree, before the final one grows."""
        return self.kind == SECOND_PASS

    def head_slots(self, block: int) -> int:
        """Slots that a head with blocks of ``block`` slots runs a round, at full depth."""
        return block + 2 * self.budget if self.second_pass else block

    def build(self, root: int, candidates: Candidates) -> Tree:
        """The tree below ``root`` that the first pass gives."""
        return self.builder.build(root, candidates, self.budget)


def exact_policies(budgets: Sequence[int], depth: int) -> tuple[Policy, ...]:
    """The chain of a head that goes to ``depth``, and exact best-first at each budget."""
    chain = Policy(kind=CHAIN, budget=depth + 1, builder=Chain())
    trees = [Policy(kind=TREE, budget=budget, builder=BestFirst()) for budget in budgets]
    return (chain, *trees)


def second_pass_policies(budgets: Sequence[int]) -> tuple[Policy, ...]:
    """Trees of a second pass at each budget; the first trees are exact best-first ones."""
    return tuple(Policy(kind=SECOND_PASS, budget=b, builder=BestFirst()) for b in budgets)


def all_policies(budgets: Sequence[int], depth: int) -> tuple[Policy, ...]:
    """``exact_policies``, and the reference's builder at the same budgets."""
    others = [Policy(kind=ALL_CHILDREN, budget=b, builder=AllChildren()) for b in budgets]
    return (*exact_policies(budgets, depth), *others)
