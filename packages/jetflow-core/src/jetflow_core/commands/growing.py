"""The options that say how trees are drafted and grown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from jetflow_core.commands.numbers import parse_whole, whole
from jetflow_core.limits import MAX_BUDGET

if TYPE_CHECKING:
    from jetflow_tree import TreeBuilder

    from jetflow_core.engine import TreeOptions

_GROUP = Group("Trees", sort_key=2)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True, slots=True)
class GrowOptions:
    """Budget, depth and builder of the trees."""

    budget: Annotated[
        str,
        Parameter(
            help="Rows of one verify pass, root included, 1 to 256: 1 is plain decoding, 64 the "
            "root and 63 drafted nodes; auto follows measured cost."
        ),
    ] = "auto"
    depth: Annotated[
        int | None,
        whole(1, 10**6),
        Parameter(help="Deepest depth to draft; left out: the head's own."),
    ] = None
    builder: Annotated[
        Literal["best-first", "all-children", "chain"],
        Parameter(
            help="How a tree grows from the head's candidates; budget auto needs best-first."
        ),
    ] = "best-first"

    def check(self) -> None:
        """Refuses what does not fit together, without importing anything heavy.

        Raises:
            ValueError: the builder needs a budget that was not given.
            OptionError: the budget is no number in range, and not auto.
        """
        if self._budget() == "auto" and self.builder != "best-first":
            raise ValueError(
                f"budget auto needs best-first trees: add --budget N to grow {self.builder} ones"
            )

    def tree_options(self) -> TreeOptions:
        """The same as the engine takes it.

        Raises:
            ValueError: see ``check``.
            OptionError: see ``check``.
        """
        self.check()
        from jetflow_core.engine import TreeOptions

        return TreeOptions(budget=self._budget(), depth=self.depth, builder=self._builder())

    def _budget(self) -> int | Literal["auto"]:
        if self.budget == "auto":
            return "auto"
        return parse_whole(self.budget, "budget", 1, MAX_BUDGET)

    def _builder(self) -> TreeBuilder:
        from jetflow_tree import AllChildren, BestFirst, Chain

        if self.builder == "best-first":
            return BestFirst()
        return AllChildren() if self.builder == "all-children" else Chain()
