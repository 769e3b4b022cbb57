"""``jetflow bench lossless``: the same tokens as transformers' greedy generate."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.bench_options import Budgets, Limit, MaxNewTokens, Out, Prompts
from jetflow_core.commands.models import ModelOptions


def command(
    *,
    prompts: Prompts = ("builtin",),
    limit: Limit = None,
    seed: Annotated[int, Parameter(help="Of the draw of prompts.")] = 0,
    target: Annotated[
        str | None,
        Parameter(help="Folder or hub name of the target; left out: the embedded SmolLM2-135M."),
    ] = None,
    head: Annotated[
        str | None, Parameter(help="Folder of the draft head; left out: the default.")
    ] = None,
    device: Annotated[str, Parameter(help="A torch device; auto: cuda if there is one.")] = "auto",
    dtype: Annotated[
        str, Parameter(help="Number type; only float32 (TF32 off) and float64 must be identical.")
    ] = "float32",
    threads: Annotated[int | None, Parameter(help="CPU threads of each process.")] = None,
    budgets: Budgets = "1,2,16,64,256",
    drafters: Annotated[
        str, Parameter(help="Who drafts, of head, wrong, random, oracle.")
    ] = "head,wrong,random,oracle",
    max_new_tokens: MaxNewTokens = 128,
    slots: Annotated[int, Parameter(help="Prompts decoded together in one pass.")] = 1,
    processes: Annotated[int, Parameter(help="Processes that share the work and the device.")] = 1,
    out: Out = None,
) -> int:
    """Compare tree decoding with transformers' own greedy generate, token for token.

    The plain side runs in other processes that share no code with this package. Exit code 1 if an
    answer differs in float32 or float64; in 16-bit types differences are listed with their logit
    gap, since rounding alone can turn a near-tie.
    """
    from rich.console import Console

    from jetflow_core.bench.checks import parse_budgets, parse_choices
    from jetflow_core.bench.grid import DRAFTERS
    from jetflow_core.bench.lossless import LosslessSettings, run_lossless
    from jetflow_core.bench.tables import lossless_lines, lossless_table
    from jetflow_core.engine import MAX_BUDGET
    from jetflow_core.reports.files import check_output, write_report

    if out is not None:
        check_output(out)
    settings = LosslessSettings(
        prompts=prompts,
        limit=limit,
        seed=seed,
        target=target,
        head=head,
        device=ModelOptions(device=device).torch_device(),
        dtype=dtype,
        budgets=parse_budgets(budgets, MAX_BUDGET),
        drafters=parse_choices(drafters, DRAFTERS, "drafter"),
        max_new_tokens=max_new_tokens,
        slots=slots,
        processes=processes,
        threads=threads,
    )
    report = run_lossless(settings)
    if out is not None:
        write_report(out, report)
    console = Console()
    console.print(lossless_table(report))
    for line in lossless_lines(report):
        console.print(line, highlight=False)
    return int(report["exact"] and not report["passed"])
