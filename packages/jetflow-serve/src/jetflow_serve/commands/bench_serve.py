"""``jetflow bench serve``: servers under load, plain decoding beside chain and trees."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter
from jetflow_core.commands.bench_options import Limit, MaxNewTokens, Out, Prompts, Repeats
from jetflow_core.commands.numbers import Real, Seed, whole


def command(
    *vllm_options: Annotated[
        str,
        Parameter(help="Behind a --: options of vLLM for the servers that are started."),
    ],
    url: Annotated[
        str | None,
        Parameter(help="Address of a server that runs already; left out: servers are started."),
    ] = None,
    target: Annotated[
        str | None,
        Parameter(
            help="Folder or hub name of the target; left out: the embedded SmolLM2-135M. With "
            "--url: where its tokenizer is read, left out: where the server reads it."
        ),
    ] = None,
    head: Annotated[
        str | None, Parameter(help="Folder of its draft head; left out: the default.")
    ] = None,
    modes: Annotated[
        str | None,
        Parameter(
            help="What to compare, of plain, chain, tree, auto, with commas; left out: all that "
            "this version has, and with --url plain,tree."
        ),
    ] = None,
    budgets: Annotated[
        str,
        Parameter(
            help="Rows of one verify pass of the trees, root included, with commas; auto uses at "
            "most the largest."
        ),
    ] = "16,64,128,256",
    depth: Annotated[
        int | None,
        whole(1, 1024),
        Parameter(help="Deepest depth to draft; left out: the head's own."),
    ] = None,
    batches: Annotated[
        str | None,
        Parameter(
            help="Requests in flight at a time, with commas; left out: 1,4,16,64, or none beside "
            "--rates."
        ),
    ] = None,
    rates: Annotated[str, Parameter(help="Requests a second, with commas.")] = "",
    prompts: Prompts = ("builtin",),
    limit: Limit = None,
    requests: Annotated[
        int | None,
        whole(1, 10**6),
        Parameter(
            help="Requests under each load; left out: each prompt once, at least four for each "
            "place of a batch, or 30 seconds of a rate."
        ),
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Annotated[Real, Parameter(help="0 is greedy.")] = 0.0,
    seed: Annotated[Seed, Parameter(help="Of the draw of prompts, and of a rate's moments.")] = 0,
    repeats: Annotated[Repeats, Parameter(help="Runs of each load.")] = 1,
    warm_up: Annotated[
        int,
        whole(0, 10**6),
        Parameter(help="Requests before the first load of a configuration, not measured."),
    ] = 4,
    raw: Annotated[
        bool, Parameter(help="Send prompts as they are, without the chat template.", negative=())
    ] = False,
    one_server: Annotated[
        bool,
        Parameter(
            help="Ask all tree budgets of the largest one's server, by a field of each request.",
            negative=(),
        ),
    ] = False,
    port: Annotated[
        int | None, whole(1, 65535), Parameter(help="Of started servers; left out: a free one.")
    ] = None,
    start_seconds: Annotated[
        int, whole(1, 10**5), Parameter(help="How long a server may take until it answers.")
    ] = 900,
    logs: Annotated[
        str | None,
        Parameter(
            help="Folder for logs and the client's own files; left out: beside the report, "
            "or a new temporary one."
        ),
    ] = None,
    out: Out = None,
    plot: Annotated[
        str | None, Parameter(help="Draw throughput against latency: a .png, .svg or .pdf file.")
    ] = None,
) -> int:
    """Measure servers under load: plain decoding, chain, trees, with vLLM's own client.

    The load comes from `vllm bench serve`. Each configuration has a server of its own, started and
    stopped here; with --url one that runs already answers all. With --out the report is written
    after every configuration, an interrupted run leaves OUT.partial, and the same command goes on.
    Exit code 1: something could not be measured; the end of its log is shown.
    """
    import sys

    from jetflow_core.bench.checks import check_apart, check_plot, parse_budgets, parse_choices

    from jetflow_serve.bench.client import check_client
    from jetflow_serve.bench.configurations import KINDS, default_kinds
    from jetflow_serve.bench.loads import parse_batches, parse_rates
    from jetflow_serve.bench.settings import ServeBenchSettings
    from jetflow_serve.options import MOST_ROWS

    if plot is not None:
        check_plot(plot)
    check_apart(out, plot)
    settings = ServeBenchSettings(
        url=url,
        target=target,
        head=head,
        modes=default_kinds(running=url is not None)
        if modes is None
        else parse_choices(modes, KINDS, "mode"),
        budgets=parse_budgets(budgets, MOST_ROWS),
        depth=depth,
        batches=parse_batches(("" if rates else "1,4,16,64") if batches is None else batches),
        rates=parse_rates(rates),
        prompts=prompts,
        limit=limit,
        requests=requests,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        seed=seed,
        repeats=repeats,
        warm_up=warm_up,
        raw=raw,
        one_server=one_server,
        server_options=vllm_options,
        start_seconds=start_seconds,
    )
    vllm = check_client()
    # Only now: the models' libraries take seconds to import.
    from rich.console import Console

    from jetflow_serve.bench.plot import plot_serve
    from jetflow_serve.bench.preparing import Places, prepare
    from jetflow_serve.bench.run import run_serve
    from jetflow_serve.bench.tables import failure_lines, serve_tables

    plan = prepare(settings, Places(out=out, logs=logs, port=port), vllm)
    print(f"logs: {plan.logs}", file=sys.stderr)
    report = run_serve(plan, lambda line: print(line, file=sys.stderr, flush=True))
    console = Console()
    for table in serve_tables(report):
        console.print(table)
    for note in report["notes"]:
        console.print(f"note: {note}", highlight=False)
    for line in failure_lines(report):
        print(line, file=sys.stderr)
    if plot is not None and report["configurations"]:
        plot_serve(report, plot)
    return 0 if report["finished"] else 1
