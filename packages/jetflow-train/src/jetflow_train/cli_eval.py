"""``jetflow eval``: how good heads are, on prompts they never saw."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from jetflow_core.commands.numbers import REAL, Positive, Seed, whole
from jetflow_core.limits import MAX_BUDGET

_Many = Parameter(consume_multiple=True)


def command(
    *,
    head: Annotated[tuple[Path, ...], _Many],
    prompts: Annotated[tuple[Path, ...], _Many],
    target: Path | None = None,
    limit: Positive = 128,
    seed: Seed = 0,
    temperatures: Annotated[tuple[float, ...], REAL, _Many] = (0.0, 0.7, 1.0),
    budgets: Annotated[tuple[int, ...], whole(1, MAX_BUDGET), _Many] = (16, 64, 256),
    max_new_tokens: Annotated[int, whole(1, 10**6)] = 128,
    second_pass: bool = False,
    workers: Annotated[int | None, whole(1, 1024)] = None,
    out: Path | None = None,
    plots: Path | None = None,
) -> None:
    """Tau of draft heads on held-out prompts, by set, temperature and kind of tree.

    The target answers the prompts, and every head is walked over the same answers: chain, exact
    best-first trees, the reference's all-children trees, and its base alone without the path term.

    Args:
        head: Folders of draft heads; the others are also told as ratios to the first.
        prompts: JSONL prompt files, each its own set.
        target: Folder of the target; the embedded one if left out.
        limit: Prompts taken from each file.
        seed: Of the sampled answers.
        temperatures: Of the answers; 0 is greedy.
        budgets: Rows of one verify pass, root included.
        max_new_tokens: Most tokens of an answer; long greedy texts loop, and loops raise tau.
        second_pass: Also trees for which the head runs again over its first tree; for heads that
            were trained with `--prefix-fill`.
        workers: Processes that walk the answers; one for each CPU if left out.
        out: Write the report into this JSON file.
        plots: Draw tau by budget and acceptance by depth into this folder.
    """
    from jetflow_core.reports.files import check_output, write_report

    from jetflow_train.evaluation.settings import EvalSettings
    from jetflow_train.evaluation.walkers import available_cpus
    from jetflow_train.prompts import named_sets, read_prompts

    settings = EvalSettings(
        heads=head,
        prompts=prompts,
        target=target,
        limit=limit,
        seed=seed,
        temperatures=temperatures,
        budgets=budgets,
        max_new_tokens=max_new_tokens,
        second_pass=second_pass,
        workers=workers or available_cpus(),
    )
    named_sets(prompts)
    read_prompts(prompts, limit)
    if out is not None:
        check_output(out)
    if plots is not None:
        from jetflow_train.evaluation.plots import check_plots

        check_plots(plots)
    # Only now: torch takes seconds to import.
    from rich.console import Console

    from jetflow_train.cli import say
    from jetflow_train.evaluation.job import run_eval
    from jetflow_train.evaluation.plots import plot_eval
    from jetflow_train.evaluation.table import eval_tables

    report = run_eval(settings, say)
    try:
        if out is not None:
            write_report(out, report)
    finally:
        console = Console()
        for table in eval_tables(report):
            console.print(table)
    if plots is not None:
        for picture in plot_eval(report, plots):
            say(f"drew {picture}")
