"""``jetflow bench decode``: tau and speed beside plain decoding."""

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
    Repeats,
    Slots,
    ready_target,
    torch_device,
)
from jetflow_core.commands.numbers import Real, Seed, Threads, whole
from jetflow_core.devices import check_device_name


def command(
    *,
    prompts: Prompts = ("builtin",),
    limit: Limit = None,
    seed: Annotated[Seed, Parameter(help="Of the draw of prompts, and of sampling.")] = 0,
    target: Annotated[
        str | None,
        Parameter(help="Folder or hub name of the target; left out: the embedded SmolLM2-135M."),
    ] = None,
    head: Annotated[
        tuple[str, ...],
        Parameter(consume_multiple=True, help="Folders of draft heads; left out: the default."),
    ] = (),
    device: Device = "auto",
    dtype: Annotated[str, Parameter(help="Number type; auto: the fastest on the device.")] = "auto",
    threads: Threads = None,
    kinds: Annotated[
        str,
        Parameter(help="What to compare, of plain, chain, tree, auto, all-children, with commas."),
    ] = "plain,chain,tree,auto,all-children",
    budgets: Budgets = "1,16,64,256",
    depth: Annotated[
        int | None,
        whole(1, 10**6),
        Parameter(help="Deepest depth to draft; left out: the head's own."),
    ] = None,
    temperature: Annotated[Real, Parameter(help="0 is greedy.")] = 0.0,
    max_new_tokens: MaxNewTokens = 128,
    repeats: Annotated[Repeats, Parameter(help="Timed runs of each, in alternating order.")] = 3,
    slots: Slots = 1,
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
    from jetflow_core.bench.checks import check_apart, check_plot, parse_budgets, parse_choices
    from jetflow_core.limits import MAX_BUDGET

    if plot is not None:
        check_plot(plot)
    check_apart(out, plot)
    sizes = parse_budgets(budgets, MAX_BUDGET)
    if device != "auto":
        check_device_name(device)
    # Only now: the models' libraries take seconds to import.
    from rich.console import Console

    from jetflow_core.bench.configurations import KINDS
    from jetflow_core.bench.decode import DecodeSettings, run_decode
    from jetflow_core.bench.plots import plot_decode
    from jetflow_core.bench.tables import decode_tables

    settings = DecodeSettings(
        prompts=prompts,
        limit=limit,
        seed=seed,
        target=target,
        heads=head,
        device=torch_device(device),
        dtype=None if dtype == "auto" else dtype,
        kinds=parse_choices(kinds, KINDS, "kind"),
        budgets=sizes,
        depth=depth,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        slots=slots,
        threads=threads,
        tau_only=tau_only,
    )
    ready_target(target)
    report = run_decode(settings, out)
    console = Console()
    for table in decode_tables(report):
        console.print(table)
    for note in report["notes"]:
        console.print(f"note: {note}", highlight=False)
    if plot is not None:
        plot_decode(report, plot)
    return 0
