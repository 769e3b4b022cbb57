"""``jetflow ablate``: one training many times, one thing changed at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from jetflow_core.commands.numbers import Real, whole

_Many = Parameter(consume_multiple=True)


def command(
    plan: str,
    /,
    *,
    out: Path,
    target: Path | None = None,
    data: Annotated[tuple[str, ...], _Many] = (),
    prompts: Annotated[tuple[Path, ...], _Many] = (),
    max_seconds: Real | None = None,
    workers: Annotated[int | None, whole(1, 1024)] = None,
    plots: bool = False,
) -> int:
    """Train heads that differ in one thing each, and measure them side by side.

    A study goes on where it was when the same command is given again. Exit code 75 says that
    something is still missing. Results: results.json, table.md, and a run folder for each head.

    Args:
        plan: TOML file, or a plan of the package: `paper`, `path-term` or `second-pass`.
        out: Folder of the study.
        target: Folder of the target; the embedded one if left out.
        data: NAME=DIR words: the folders that the plan knows by name.
        prompts: JSONL prompt files to measure on, in place of the plan's.
        max_seconds: Begin nothing after this time, and stop a run at its next step.
        workers: Processes that walk answers; one for each CPU if left out.
        plots: Draw tau by budget into the folder.
    """
    began = time.monotonic()
    if max_seconds is not None and not 0 <= max_seconds < float("inf"):
        raise ValueError(f"max-seconds {max_seconds} is out of range: 0 or above, and finite")
    from jetflow_train.ablation.plan import read_plan
    from jetflow_train.ablation.study import data_folders, prepare
    from jetflow_train.cli import say
    from jetflow_train.evaluation.plots import check_plots
    from jetflow_train.evaluation.walkers import available_cpus
    from jetflow_train.prompts import named_sets, read_prompts

    given = data_folders(data)
    read = read_plan(plan, prompts)
    named_sets(read.evaluation.prompts)
    read_prompts(read.evaluation.prompts, read.evaluation.limit)
    study = prepare(read, given)
    if plots:
        check_plots(out / "plots")
    from jetflow_core.defaults import default_target

    from jetflow_train.ablation.job import run_study
    from jetflow_train.signals import INTERRUPTED

    complete = run_study(
        study,
        out,
        default_target() if target is None else target,
        over=lambda: max_seconds is not None and time.monotonic() - began >= max_seconds,
        workers=workers or available_cpus(),
        plots=plots,
        report=say,
    )
    return 0 if complete else INTERRUPTED
