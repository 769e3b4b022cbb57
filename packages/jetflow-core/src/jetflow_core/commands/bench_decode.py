"""``jetflow bench decode``: tau and speed beside plain decoding."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.bench_options import Budgets, Limit, MaxNewTokens, Out, Prompts
from jetflow_core.commands.models import ModelOptions


def command(
    *,
    prompts: Prompts = ("builtin",),
    limit: Limit = None,
    seed: Annotated[int, Parameter(help="Of the draw of prompts, and of sampling.")] = 0,
    target: Annotated[
        str | None,
        Parameter(help="Folder or hub name of the target; left out: the embedded SmolLM2-135M."),
    ] = None,
    head: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, help="Folders of draft heads; left out: the default."),
    ] = (),
    device: Annotated[str, Parameter(help="A torch device; auto: cuda if there is one.")] = "auto",
    dtype: Annotated[str, Parameter(help="Number type; auto: the fastest on the device.")] = "auto",
    threads: Annotated[int | None, Parameter(help="CPU threads; left out: torch's choice.")] = None,
    kinds: Annotated[
        str, Parameter(help="What to compare, of plain, chain, tree, auto, all-children.")
    ] = "plain,chain,tree,auto,all-children",
    budgets: Budgets = "1,16,64,256",
    depth: Annotated[
        int | None, Parameter(help="Deepest depth to draft; left out: the head's own.")
    ] = None,
    temperature: Annotated[float, Parameter(help="0 is greedy.")] = 0.0,
    max_new_tokens: MaxNewTokens = 128,
    repeats: Annotated[int, Parameter(help="Timed runs of each, in alternating order.")] = 3,
    slots: Annotated[int, Parameter(help="Prompts decoded together in one pass.")] = 1,
    tau_only: Annotated[
        bool,
        Parameter(
            help="No timing, no auto: one run of each, for acceptance on large sets.", negative=()
        ),
    ] = False,
    out: Out = None,
    plot: Annotated[
        str | None, Parameter(help="Draw the report into this .png, .svg or .pdf file.")
    ] = None,
) -> int:
    """Measure tau and speed of plain decoding, chain and trees of the same head.

    Prompts are decoded for real; tau = new tokens / rounds, pooled over the prompts of a set, with
    loop share, tau without looping tails and a prompt-lookup row beside it. With --out an
    interrupted run leaves OUT.partial, and the same command goes on from there.
    """
    from rich.console import Console

    from jetflow_core.bench.checks import parse_budgets, parse_choices
    from jetflow_core.bench.configurations import KINDS
    from jetflow_core.bench.decode import DecodeSettings, run_decode
    from jetflow_core.bench.plots import check_plot, plot_decode
    from jetflow_core.bench.tables import decode_tables
    from jetflow_core.engine import MAX_BUDGET

    if plot is not None:
        check_plot(plot)
    settings = DecodeSettings(
        prompts=prompts,
        limit=limit,
        seed=seed,
        target=target,
        heads=head,
        device=ModelOptions(device=device).torch_device(),
        dtype=None if dtype == "auto" else dtype,
        kinds=parse_choices(kinds, KINDS, "kind"),
        budgets=parse_budgets(budgets, MAX_BUDGET),
        depth=depth,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        slots=slots,
        threads=threads,
        tau_only=tau_only,
    )
    report = run_decode(settings, out)
    console = Console()
    for table in decode_tables(report):
        console.print(table)
    for note in report["notes"]:
        console.print(f"note: {note}", highlight=False)
    if plot is not None:
        plot_decode(report, plot)
    return 0
