"""``jetflow bench tree``: the tree builders beside a plain Python heap."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.bench_options import Out, Repeats, finish
from jetflow_core.commands.numbers import Seed, whole

_MOST_ROWS = 65536


def command(
    *,
    budgets: Annotated[str, Parameter(help="Rows of the trees, root included.")] = "16,64,256",
    depth: Annotated[int, whole(1, 64), Parameter(help="Depths of the candidates.")] = 16,
    width: Annotated[int, whole(1, 1000), Parameter(help="Candidates a depth.")] = 16,
    repeats: Annotated[Repeats, Parameter(help="Timed turns of every builder.")] = 100,
    seed: Annotated[Seed, Parameter(help="Of the candidates.")] = 0,
    out: Out = None,
) -> int:
    """Time the tree builders on random candidates, beside a plain Python heap.

    All builders take turns on the same candidates; a ratio below 1 is faster than the plain heap.
    """
    from jetflow_tree import bench
    from rich.console import Console

    from jetflow_core.bench.checks import parse_budgets
    from jetflow_core.bench.tables import tree_table
    from jetflow_core.reports.files import check_output
    from jetflow_core.reports.provenance import provenance

    sizes = parse_budgets(budgets, _MOST_ROWS)
    if out is not None:
        check_output(out)
    error = Console(stderr=True)
    with error.status("timing builders") as status:
        report = bench.run(
            budgets=sizes,
            depth=depth,
            width=width,
            repeats=repeats,
            seed=seed,
            on_progress=status.update,
        )
    told = {"format": "jetflow-bench-tree/1", **report, "provenance": provenance()}
    finish(out, told, lambda: Console().print(tree_table(report)))
    return 0
