"""Commands of jetflow-train. Everything heavy is imported inside the function that needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from jetflow_core.cli import run_app
from jetflow_core.commands.numbers import Positive, Seed, whole
from jetflow_core.commands.registry import new_app

from jetflow_train import cli_eval
from jetflow_train.prompts import named_sets

_NAME = "jetflow-train"

Files = Annotated[list[Path], Parameter(consume_multiple=True)]
Folders = Annotated[list[Path], Parameter(consume_multiple=True)]
Numbers = Annotated[list[float], Parameter(consume_multiple=True)]


def regenerate(
    *,
    prompts: Files,
    out: Path,
    target: Path | None = None,
    temperatures: Numbers | None = None,
    max_new_tokens: Positive = 160,
    max_prompt_tokens: Positive = 384,
    rows: Positive = 2048,
    limit: Annotated[int | None, whole(1)] = None,
    max_seconds: float | None = None,
    compile: bool | None = None,
    seed: Seed = 0,
) -> None:
    """Let the target answer prompts; a folder that is partly there is completed.

    Args:
        prompts: JSONL files with the key `prompt`.
        out: Data folder to write.
        target: Folder of the target (transformers format, with tokenizer and chat template);
            the embedded SmolLM2-135M-Instruct if left out.
        temperatures: Each prompt is answered once at each; 0 is greedy. Default 0 0.7 0.8.
        max_new_tokens: Longest answer.
        max_prompt_tokens: Longer prompts are skipped.
        rows: Sequences decoded at once.
        limit: Prompts taken from each file.
        max_seconds: Start nothing new after this time.
        compile: Fuse small operations with torch.compile; by default on a GPU.
        seed: Of order and sampling.
    """
    from jetflow_train.regenerate import RegenerateConfig
    from jetflow_train.run import run_regenerate

    config = RegenerateConfig(
        temperatures=tuple(temperatures) if temperatures else (0.0, 0.7, 0.8),
        max_new_tokens=max_new_tokens,
        max_prompt_tokens=max_prompt_tokens,
        rows=rows,
        seed=seed,
    )
    manifest = run_regenerate(
        _folder(target),
        prompts,
        out,
        config,
        limit=limit,
        max_seconds=max_seconds,
        compiled=compile,
        report=say,
    )
    tokens = sum(entry["tokens"] for entry in manifest["shards"])
    say(f"{manifest['jobs']}, {tokens:,} tokens with prompts, complete: {manifest['complete']}")


def train(
    *,
    data: Folders,
    out: Path,
    target: Path | None = None,
    max_minutes: float | None = None,
    max_steps: Annotated[int | None, whole(1)] = None,
    eval_prompts: Files | None = None,
    eval_limit: Positive = 128,
    resume: bool = False,
    compile: bool | None = None,
    layers: Annotated[int, whole(1, 256)] = 3,
    block_size: Annotated[int, whole(2, 1024)] = 16,
    path_rank: Annotated[int, whole(0, 16384)] = 128,
    path_context: bool = True,
    candidate_pool: Annotated[int, whole(0, 16384)] = 64,
    causal: bool = True,
    rows: Positive = 32,
    pieces: Positive = 1,
    width: Positive = 512,
    anchors: Positive = 80,
    chunks: Positive = 4,
    learning_rate: float = 1.5e-3,
    path_learning_rate: float = 3e-3,
    loss: Literal["forward_kl", "reverse_kl", "cross_entropy", "total_variation"] = "forward_kl",
    loss_temperature: float = 1.0,
    gamma: float = 4.0,
    seed: Seed = 0,
    shard: Literal["none", "head", "all"] = "none",
) -> int:
    """Train a draft head on what its target wrote.

    The schedule ends with the horizon, whatever the machine's speed. Under torchrun the processes
    share the rows of every step. Ctrl-C or SIGTERM: the step is finished, the state saved, exit
    code 75; a second one ends at once.

    Args:
        data: Data folders that this target wrote.
        out: Run folder: state, metrics, `head` and `head-8bit`.
        target: Folder of the target; the embedded one if left out.
        max_minutes: Horizon in time (without the first, compiling step).
        max_steps: Horizon in steps, instead of `max_minutes`.
        eval_prompts: JSONL prompt files, each its own held-out set.
        eval_limit: Prompts taken from each of them.
        resume: Go on with the run in `out`.
        compile: Compile the step's heavy parts; by default on a GPU.
        layers: Layers of the head.
        block_size: Slots of a block, the root's included.
        path_rank: Rank of the path term; 0 leaves it out.
        path_context: The path term also reads the hidden state of its depth.
        candidate_pool: Best tokens of a depth among which its candidates are chosen by their
            chance along the drafted paths; 0 takes the depth's own best.
        causal: A slot of the block sees no later slot.
        rows: Packed rows a step, over all processes.
        pieces: Parts in which a process works through its rows; more need less memory.
        width: Tokens of a row.
        anchors: Blocks a row.
        chunks: Pieces of the loss; more need less memory.
        learning_rate: Peak rate of the head.
        path_learning_rate: Peak rate of the path term.
        loss: What is made small, over the full vocabulary.
        loss_temperature: Divides the logits of both sides in the loss.
        gamma: Depth d weighs exp(-(d - 1) / gamma); 0 weighs all alike.
        seed: Of everything random.
        shard: What the processes of torchrun hold a part of each: nothing; the `head` with its
            gradients and optimizer; or `all`, the layers of the target too.
    """
    if (max_minutes is None) == (max_steps is None):
        raise ValueError("the length of the run: give --max-minutes or --max-steps, one of them")
    eval_sets = named_sets(eval_prompts or [])
    # Only now: torch takes seconds to import.
    from jetflow_train.distributed import joined
    from jetflow_train.run import HeadChoice, run_train
    from jetflow_train.schedule import Horizon
    from jetflow_train.signals import INTERRUPTED
    from jetflow_train.train_config import TrainConfig

    with joined() as world:
        head = run_train(
            _folder(target),
            data,
            out,
            TrainConfig(
                rows=rows,
                pieces=pieces,
                width=width,
                anchors=anchors,
                chunks=chunks,
                learning_rate=learning_rate,
                path_learning_rate=path_learning_rate,
                loss=loss,
                loss_temperature=loss_temperature,
                gamma=gamma,
                seed=seed,
            ),
            HeadChoice(
                num_layers=layers,
                block_size=block_size,
                path_rank=path_rank,
                path_context=path_context,
                candidate_pool=candidate_pool,
                causal=causal,
            ),
            Horizon(minutes=max_minutes, steps=max_steps),
            eval_sets=eval_sets,
            eval_limit=eval_limit,
            resume=resume,
            compiled=compile,
            world=world,
            shard=shard,
            report=say,
        )
    if head is None:
        return INTERRUPTED
    if world.leads:
        say(f"head: {head}")
    return 0


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
    app.command(data)
    for command in (train, smoke):
        app.command(command)
    app.command(cli_eval.command, name="eval")
    return app


def main() -> None:
    """Runs the command line of this process and exits; errors as in the command `jetflow`."""
    sys.exit(run_app(build(), sys.argv[1:], name=_NAME))
