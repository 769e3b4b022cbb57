"""Commands of jetflow-train. Everything heavy is imported inside the function that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from jetflow_core.cli import run_app
from jetflow_core.commands.numbers import REAL, Positive, Real, Seed, whole
from jetflow_core.commands.registry import new_app
from jetflow_core.thinking import thinking_of

from jetflow_train import cli_ablate, cli_calibrate, cli_data, cli_eval
from jetflow_train.settings import RUN, TrainSettings

_NAME = "jetflow-train"

Files = Annotated[list[Path], Parameter(consume_multiple=True)]
Numbers = Annotated[tuple[float, ...], REAL, Parameter(consume_multiple=True)]


def regenerate(
    *,
    prompts: Files,
    out: Path,
    target: Path | None = None,
    temperatures: Numbers = (0.0, 0.7, 0.8),
    max_new_tokens: Positive = 160,
    max_prompt_tokens: Positive = 384,
    rows: Positive = 2048,
    shard_rows: Positive = 8192,
    limit: Annotated[int | None, whole(1)] = None,
    max_seconds: Real | None = None,
    compile: bool | None = None,
    seed: Seed = 0,
    thinking: Literal["on", "off"] | None = None,
    server: str | None = None,
    model: str | None = None,
    config: Path | None = None,
) -> None:
    """Let the target answer prompts; a folder that is partly there is completed.

    Args:
        prompts: JSONL files with the key `prompt`.
        out: Data folder to write.
        target: Folder of the target (transformers format, with tokenizer and chat template);
            the embedded SmolLM2-135M-Instruct if left out.
        temperatures: Each prompt is answered once at each; 0 is greedy.
        max_new_tokens: Longest answer.
        max_prompt_tokens: Longer prompts are skipped.
        rows: Sequences decoded at once; with `--server`, requests at once, at most 256.
        shard_rows: Answers of a shard. A run that is killed loses the shards that it has not
            written, so give few on a slow machine.
        limit: Prompts taken from each file.
        max_seconds: Start no further shard after this time.
        compile: Fuse small operations with torch.compile; by default on a GPU.
        seed: Of order and sampling.
        thinking: Whether the chat template lets the target think aloud; as the template has it if
            left out.
        server: URL of a running vLLM server that holds the target and answers in its place.
        model: The server's name for the target; its only model if left out.
        config: TOML file with these options; what stands on the command line wins.
    """
    if server is None and model is not None:
        raise ValueError(f"--model {model} is the name of the target on a --server; there is none")
    if server is not None and compile is not None:
        raise ValueError("--compile is for the target in this process; with --server none answers")
    from jetflow_train.answer_server import AnswerServer
    from jetflow_train.regenerate import RegenerateConfig
    from jetflow_train.run import run_regenerate

    where = None if server is None else AnswerServer(url=server, model=model)
    how = RegenerateConfig(
        temperatures=temperatures,
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        rows=rows,
        shard_rows=shard_rows,
        seed=seed,
    )
    manifest = run_regenerate(
        _folder(target),
        prompts,
        out,
        how,
        limit=limit,
        thinking=thinking_of(thinking),
        max_seconds=max_seconds,
        compiled=compile,
        server=where,
        report=say,
    )
    tokens = sum(entry["tokens"] for entry in manifest["shards"])
    say(f"{manifest['jobs']}, {tokens:,} tokens with prompts, complete: {manifest['complete']}")


def train(
    *, settings: TrainSettings, config: Annotated[Path | None, Parameter(group=RUN)] = None
) -> int:
    """Train a draft head on what its target wrote.

    The schedule ends with the horizon, whatever the machine's speed. Under torchrun the processes
    share the rows of every step. Ctrl-C or SIGTERM: the step is finished, the state saved, exit
    code 75; a second one ends at once.

    Args:
        settings: Of the run.
        config: TOML file with these options; what stands on the command line wins. A run stores
            its own as `out`/run.toml.
    """
    settings.check()
    # Only now: torch takes seconds to import.
    from jetflow_train.distributed import joined
    from jetflow_train.run import run_train
    from jetflow_train.signals import INTERRUPTED

    with joined() as world:
        head = run_train(settings, world=world, report=say)
    if head is None:
        return INTERRUPTED
    if world.leads:
        say(f"head: {head}")
    return 0


def plot_run(run: Path, *, out: Path) -> None:
    """Draw the losses of a run, and its tau where it was evaluated between steps.

    Args:
        run: Run folder.
        out: File to draw into: .png, .svg or .pdf.
    """
    from jetflow_train import plots

    say(f"drew {plots.plot_run(run, out)}")


def smoke(*, prompts: Files, out: Path, target: Path | None = None, seconds: float = 10.0) -> None:
    """Run every phase for a few seconds at the default training shapes.

    Args:
        prompts: JSONL prompt files.
        out: An empty folder.
        target: Folder of the target; the embedded one if left out.
        seconds: Training time.
    """
    from jetflow_train.smoke import run_smoke
    from jetflow_train.train_config import TrainConfig

    run_smoke(_folder(target), prompts, out, TrainConfig(), seconds=seconds, report=say)


def _folder(target: Path | None) -> Path:
    """The target's folder; the embedded one is converted at its first use."""
    if target is not None:
        return target
    from jetflow_core.defaults import default_target

    return default_target()


def say(text: str) -> None:
    """One line of progress on standard error, at once."""
    print(text, file=sys.stderr, flush=True)


def build() -> App:
    """The package's own application, for machines without the `jetflow` one."""
    app = new_app(_NAME, "Data, training and offline evaluation of draft heads.")
    data = App(name="data", help="Make the data that a draft head is trained on.")
    data.command(regenerate)
    data.command(cli_data.corpus)
    app.command(data)
    for command in (train, plot_run, smoke):
        app.command(command)
    app.command(cli_calibrate.command, name="calibrate")
    app.command(cli_eval.command, name="eval")
    app.command(cli_ablate.command, name="ablate")
    return app


def main() -> None:
    """Runs the command line of this process and exits; errors as in the command `jetflow`."""
    sys.exit(run_app(build(), sys.argv[1:], name=_NAME))
