"""``jetflow bench tree``: the tree builders beside a plain Python heap."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.bench_options import Out

_MOST_ROWS = 65536


def command(
    *,
    budgets: Annotated[str, Parameter(help="Rows of the trees, root included.")] = "16,64,256",
    depth: Annotated[int, Parameter(help="Depths of the candidates.")] = 16,
    width: Annotated[int, Parameter(help="Candidates a depth.")] = 16,
    repeats: Annotated[int, Parameter(help="Timed turns of every builder.")] = 100,
    seed: Annotated[int, Parameter(help="Of the candidates.")] = 0,
    out: Out = None,
) -> int:
    """Time the tree builders on random candidates, beside a plain Python heap.

    All builders take turns on the same candidates; a ratio below 1 is faster than the plain heap.
    """
    from jetflow_tree import bench
    from rich.console import Console

    from jetflow_core.bench.checks import check_at_least, parse_budgets
    from jetflow_core.bench.tables import tree_table
    from jetflow_core.reports.files import check_output, write_report
    from jetflow_core.reports.provenance import provenance

    for name, value in (("depth", depth), ("width", width), ("repeats", repeats)):
        check_at_least(name, value, 1)
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
    if out is not None:
        write_report(out, {"format": "jetflow-bench-tree/1", **report, "provenance": provenance()})
    Console().print(tree_table(report))
    return 0
