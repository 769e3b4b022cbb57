"""What is compared: plain decoding, chain, exact trees, auto, and the all-children builder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jetflow_tree import AllChildren, BestFirst, Chain, TreeBuilder

from jetflow_core.drafters.none import NoDrafter
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.protocols import Drafter

PLAIN, CHAIN, TREE, AUTO, ALL_CHILDREN = "plain", "chain", "tree", "auto", "all-children"
KINDS = (PLAIN, CHAIN, TREE, AUTO, ALL_CHILDREN)
PLAIN_BUDGET = 1


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode."""

    name: str
    """Unique in a run: the kind, its budget where it has one, its head where there are several."""
    kind: str
    budget: int | None
    """Rows of one verify pass, root included; None: the planner decides."""
    head: int | None
    """Index of the head in use; None in plain decoding."""

    def options(self, engine: Engine, depth: int | None) -> TreeOptions:
        """The same as the engine takes it.

        Args:
            engine: the one that will run it.
            depth: deepest depth to draft; None: the head's own.
        """
        if self.kind == PLAIN:
            return TreeOptions(budget=PLAIN_BUDGET)
        if self.kind == AUTO:
            return TreeOptions(budget="auto", depth=depth)
        builders: dict[str, TreeBuilder] = {
            CHAIN: Chain(),
            TREE: BestFirst(),
            ALL_CHILDREN: AllChildren(),
        }
        return TreeOptions(
            budget=self.budget or PLAIN_BUDGET, depth=depth, builder=builders[self.kind]
        )

    def drafter(self) -> Drafter | None:
        """None: the engine's head. Plain decoding is spared the head's bookkeeping."""
        return NoDrafter() if self.kind == PLAIN else None


def configurations(
    kinds: Sequence[str], budgets: Sequence[int], depths: Sequence[int], head_names: Sequence[str]
) -> list[Configuration]:
    """Everything that a run compares.

    Args:
        kinds: of ``KINDS``.
        budgets: of the trees; budget 1 is plain decoding and adds no tree.
        depths: deepest depth of each head, which makes the size of its chain.
        head_names: of the heads, unique.

    Raises:
        ValueError: nothing is left to run, or trees would be told without the chain.
    """
    if {TREE, ALL_CHILDREN} & set(kinds) and CHAIN not in kinds:
        raise ValueError(
            f"kinds {','.join(kinds)} hold trees without {CHAIN}: a tree is told beside the chain "
            "of the same head"
        )
    found = [Configuration(PLAIN, PLAIN, PLAIN_BUDGET, None)] if PLAIN in kinds else []
    for head, (depth, head_name) in enumerate(zip(depths, head_names, strict=True)):
        prefix = f"{head_name}/" if len(head_names) > 1 else ""
        found += _of_head(kinds, budgets, depth, head, prefix)
    if not found:
        raise ValueError("nothing to run: trees need a budget above 1, and a head")
    return found


def _of_head(
    kinds: Sequence[str], budgets: Sequence[int], depth: int, head: int, prefix: str
) -> list[Configuration]:
    found = []
    if CHAIN in kinds:
        found.append(Configuration(prefix + CHAIN, CHAIN, depth + 1, head))
    trees = [budget for budget in budgets if budget > PLAIN_BUDGET]
    if TREE in kinds:
        found += [Configuration(f"{prefix}{TREE}-{b}", TREE, b, head) for b in trees]
    if AUTO in kinds:
        found.append(Configuration(prefix + AUTO, AUTO, None, head))
    if ALL_CHILDREN in kinds:
        found += [Configuration(f"{prefix}{ALL_CHILDREN}-{b}", ALL_CHILDREN, b, head)
                  for b in trees]  # fmt: skip
    return found


def turn(found: Sequence[Configuration], number: int) -> list[Configuration]:
    """The order of turn ``number``: rotated, and every other time backwards.

    So no configuration always follows the same one, or always runs first.
    """
    start = number % len(found)
    order = [*found[start:], *found[:start]]
    return order[::-1] if number % 2 else order
