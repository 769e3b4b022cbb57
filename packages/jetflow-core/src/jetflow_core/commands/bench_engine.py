"""``jetflow bench engine``: whole rounds of the fast engine, by budget and phase."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.bench_options import (
    Device,
    Limit,
    MaxNewTokens,
    Out,
    Prompts,
    Repeats,
    ready_target,
    torch_device,
)
from jetflow_core.commands.numbers import REAL, Seed, Threads, whole
from jetflow_core.devices import check_device_name


def command(
    *,
    target: Annotated[
        str | None,
        Parameter(help="Folder or hub name of the target; left out: the embedded SmolLM2-135M."),
    ] = None,
    head: Annotated[
        str | None, Parameter(help="Folder of its draft head; left out: the default.")
    ] = None,
    shape: Annotated[
        str | None,
        Parameter(
            help="Instead of a target, random weights of qwen3-8b, qwen3-30b-a3b or smollm2-135m, "
            "with imposed acceptance."
        ),
    ] = None,
    head_layers: Annotated[int, whole(1, 1024), Parameter(help="Layers of the random head.")] = 5,
    path_rank: Annotated[
        int, whole(0, 2**14), Parameter(help="Rank of the random head's path term; 0: none.")
    ] = 0,
    acceptance: Annotated[
        str | None, Parameter(help="JSON file of what rounds keep, for a shape.")
    ] = None,
    trace: Annotated[
        str | None, Parameter(help="Name of the set of that file, such as math500.")
    ] = None,
    budgets: Annotated[
        tuple[str, ...],
        Parameter(
            name=("--budgets", "--budget"),
            consume_multiple=True,
            help="Rows of one request's tree, root included, 1 to 256; 1 is plain decoding, auto "
            "chooses the rows of the whole batch every round.",
        ),
    ] = ("1", "64", "128", "256"),
    depth: Annotated[
        int | None,
        whole(1, 63),
        Parameter(help="Deepest depth to draft; left out: the head's own, or the trace's."),
    ] = None,
    batch: Annotated[int, whole(1, 4096), Parameter(help="Requests decoded together.")] = 1,
    context: Annotated[
        int, whole(1, 10**7), Parameter(help="Random tokens of each prompt, with a shape.")
    ] = 1024,
    rounds: Annotated[int, whole(1, 10**6), Parameter(help="Rounds of a run, with a shape.")] = 64,
    prompts: Prompts = ("builtin",),
    limit: Limit = None,
    max_new_tokens: MaxNewTokens = 128,
    repeats: Annotated[Repeats, Parameter(help="Timed runs of each budget, in turns.")] = 5,
    device: Device = "auto",
    dtype: Annotated[str, Parameter(help="Number type; auto: the fastest on the device.")] = "auto",
    bandwidth: Annotated[
        float | None,
        REAL,
        Parameter(help="Bytes a second for the floor; left out: an H200's on a GPU."),
    ] = None,
    flops: Annotated[
        float | None,
        REAL,
        Parameter(help="Operations a second for the floor; left out: an H200's on a GPU."),
    ] = None,
    page: Annotated[
        int, whole(1, 4096), Parameter(help="Rows of a page of the cache; by kernels 16 to 256.")
    ] = 64,
    prefill_rows: Annotated[
        int, whole(1, 256), Parameter(help="Rows of a prompt in one pass.")
    ] = 256,
    seed: Annotated[Seed, Parameter(help="Of weights, prompts and imposed acceptance.")] = 0,
    threads: Threads = None,
    out: Out = None,
) -> int:
    """Measure whole rounds of the fast engine: time, tokens a second, phases, share of the floor.

    A target shows its own acceptance on real prompts. A shape has random weights, so what its
    rounds keep is imposed from a file, and the report says so: the time of a round is measured, tau
    is not. All budgets take turns; plain decoding is the same engine without a head.
    """
    from jetflow_core.bench.engine.budgets import engine_budgets
    from jetflow_core.limits import MAX_BUDGET
    from jetflow_core.reports.files import check_output

    sizes = engine_budgets(budgets, MAX_BUDGET)
    if out is not None:
        check_output(out)
    if device != "auto":
        check_device_name(device)
    # Only now: the models' libraries take seconds to import.
    from rich.console import Console

    from jetflow_core.bench.engine.run import run_engine
    from jetflow_core.bench.engine.settings import EngineSettings
    from jetflow_core.bench.engine.tables import engine_tables

    settings = EngineSettings(
        shape=shape,
        target=target,
        head=head,
        head_layers=head_layers,
        path_rank=path_rank,
        acceptance=acceptance,
        trace=trace,
        budgets=sizes,
        depth=depth,
        batch=batch,
        context=context,
        rounds=rounds,
        prompts=prompts,
        limit=limit,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        device=torch_device(device),
        dtype=None if dtype == "auto" else dtype,
        bandwidth=bandwidth,
        flops=flops,
        page=page,
        prefill_rows=prefill_rows,
        seed=seed,
        threads=threads,
    )
    if shape is None:
        ready_target(target)
    report = run_engine(settings, out)
    console = Console()
    for table in engine_tables(report):
        console.print(table)
    for note in (report["acceptance"]["statement"], *report["notes"]):
        console.print(f"note: {note}", highlight=False)
    return 0
