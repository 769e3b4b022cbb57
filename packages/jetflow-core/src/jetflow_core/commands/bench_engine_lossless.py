"""``jetflow bench engine-lossless``: the fast engine loses nothing."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.bench_options import (
    Device,
    Limit,
    MaxNewTokens,
    Out,
    Prompts,
    ready_target,
    torch_device,
)
from jetflow_core.commands.numbers import Seed, Threads, whole
from jetflow_core.devices import check_device_name
from jetflow_core.limits import MAX_SLOTS


def command(
    *,
    parts: Annotated[
        str, Parameter(help="What is checked, of exact, rounding, sampling, with commas.")
    ] = "exact,rounding,sampling",
    prompts: Prompts = ("builtin",),
    limit: Limit = None,
    seed: Annotated[Seed, Parameter(help="Of the draw of prompts.")] = 0,
    target: Annotated[
        str | None,
        Parameter(help="Folder or hub name of the target; left out: the embedded SmolLM2-135M."),
    ] = None,
    head: Annotated[
        str | None, Parameter(help="Folder of the draft head; left out: the default.")
    ] = None,
    device: Device = "auto",
    drafters: Annotated[
        str, Parameter(help="Who drafts, of head, wrong, random, oracle, with commas.")
    ] = "head,wrong,random,oracle",
    budgets: Annotated[
        str,
        Parameter(
            help="Rows of one request's tree, root included, 1 to 256, and auto, with commas."
        ),
    ] = "1,16,64,256,auto",
    batch: Annotated[
        int, whole(2, MAX_SLOTS), Parameter(help="Requests held at once; each runs alone as well.")
    ] = 16,
    page: Annotated[
        int,
        whole(1, 2**16),
        Parameter(help="Rows of a page of keys and values; by kernels 16 to 256."),
    ] = 16,
    max_new_tokens: MaxNewTokens = 64,
    rounds: Annotated[
        int, whole(1, 10**9), Parameter(help="Rounds at temperature 1, in each number type.")
    ] = 20_000,
    processes: Annotated[
        int, whole(1, 256), Parameter(help="Processes that share the work and the device.")
    ] = 1,
    threads: Annotated[Threads, Parameter(help="CPU threads of each process.")] = None,
    out: Out = None,
) -> int:
    """Show that the fast engine loses nothing, whoever drafts and whoever decodes beside.

    exact: in float32 every request has the tokens of transformers' own generate, alone and in a
    batch in which requests come, end and are preempted. rounding: in bfloat16 trees leave the
    text of plain rounds no more often than chains of as many rows, each place listed with its
    logit gap. sampling: many rounds at temperature 1 write nothing outside of their tensors and
    take no more memory.

    Exit code 1 if anything is not so, or if a batch never came to preemptions. Finished cells are
    kept beside the report, so that the same command goes on after an interruption.
    """
    from jetflow_core.bench.checks import parse_choices
    from jetflow_core.reports.files import check_output

    if out is not None:
        check_output(out)
    if device != "auto":
        check_device_name(device)
    # Only now: the models' libraries take seconds to import.
    from rich.console import Console

    from jetflow_core.bench.engine.budgets import engine_budgets
    from jetflow_core.bench.engine_lossless.run import run_engine_lossless
    from jetflow_core.bench.engine_lossless.settings import DRAFTERS, PARTS, EngineLosslessSettings
    from jetflow_core.bench.engine_lossless.tables import lossless_lines, lossless_tables
    from jetflow_core.limits import MAX_BUDGET

    settings = EngineLosslessSettings(
        prompts=prompts,
        limit=limit,
        seed=seed,
        target=target,
        head=head,
        device=torch_device(device),
        parts=parse_choices(parts, PARTS, "part"),
        drafters=parse_choices(drafters, DRAFTERS, "drafter"),
        budgets=engine_budgets((budgets,), MAX_BUDGET),
        batch=batch,
        page=page,
        max_new_tokens=max_new_tokens,
        rounds=rounds,
        processes=processes,
        threads=threads,
    )
    if target is None and settings.parts != ("sampling",):
        ready_target(target)
    report = run_engine_lossless(settings, out)
    console = Console()
    for table in lossless_tables(report):
        console.print(table)
    for line in lossless_lines(report):
        console.print(line, highlight=False)
    return int(not report["passed"])
