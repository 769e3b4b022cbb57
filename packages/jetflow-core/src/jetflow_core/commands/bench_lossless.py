"""``jetflow bench lossless``: the same tokens as transformers' greedy generate."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.bench_options import (
    Budgets,
    Device,
    Limit,
    MaxNewTokens,
    Out,
    Prompts,
    Slots,
    finish,
    ready_target,
    torch_device,
)
from jetflow_core.commands.numbers import Seed, Threads, whole
from jetflow_core.devices import check_device_name


def command(
    *,
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
    dtype: Annotated[
        str, Parameter(help="Number type; only float32 (TF32 off) and float64 must be identical.")
    ] = "float32",
    threads: Annotated[Threads, Parameter(help="CPU threads of each process.")] = None,
    budgets: Budgets = "1,2,16,64,256",
    drafters: Annotated[
        str, Parameter(help="Who drafts, of head, wrong, random, oracle, with commas.")
    ] = "head,wrong,random,oracle",
    max_new_tokens: MaxNewTokens = 128,
    slots: Slots = 1,
    processes: Annotated[
        int, whole(1, 256), Parameter(help="Processes that share the work and the device.")
    ] = 1,
    out: Out = None,
) -> int:
    """Compare tree decoding with transformers' own greedy generate, token for token.

    The plain side runs in other processes that share no code with this package. Exit code 1 if an
    answer differs in float32 or float64; in 16-bit types differences are listed with their logit
    gap, since rounding alone can turn a near-tie.
    """
    from jetflow_core.bench.checks import parse_budgets, parse_choices
    from jetflow_core.limits import MAX_BUDGET
    from jetflow_core.reports.files import check_output

    if out is not None:
        check_output(out)
    sizes = parse_budgets(budgets, MAX_BUDGET)
    if device != "auto":
        check_device_name(device)
    # Only now: the models' libraries take seconds to import.
    from rich.console import Console

    from jetflow_core.bench.grid import DRAFTERS
    from jetflow_core.bench.lossless import LosslessSettings, run_lossless
    from jetflow_core.bench.tables import lossless_lines, lossless_table

    settings = LosslessSettings(
        prompts=prompts,
        limit=limit,
        seed=seed,
        target=target,
        head=head,
        device=torch_device(device),
        dtype=dtype,
        budgets=sizes,
        drafters=parse_choices(drafters, DRAFTERS, "drafter"),
        max_new_tokens=max_new_tokens,
        slots=slots,
        processes=processes,
        threads=threads,
    )
    ready_target(target)
    report = run_lossless(settings)

    def show() -> None:
        console = Console()
        console.print(lossless_table(report))
        for line in lossless_lines(report):
            console.print(line, highlight=False)

    finish(out, report, show)
    return int(report["exact"] and not report["passed"])
