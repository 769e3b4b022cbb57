"""Runs that the tests of several processes start: here in one process, or under torchrun.

As a script: every run of ``main``, each in a folder of its own. Each process writes a line about
each run into a file of its own: lines of two processes on one output may run into each other.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from jetflow_train.distributed import World, joined
from jetflow_train.initialise import head_config, new_head
from jetflow_train.schedule import Horizon
from jetflow_train.sharding import Shard
from jetflow_train.shards import Corpus
from jetflow_train.target import FrozenTarget, from_model
from jetflow_train.train_config import OptimizerName, TrainConfig
from jetflow_train.trainer import Trainer
from transformers import LlamaConfig, LlamaForCausalLM

STEPS = 4


def tiny_target() -> FrozenTarget:
    """The same fp32 target at each call."""
    torch.manual_seed(0)
    shape = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
        "initializer_range": 0.3,
    }  # fmt: skip
    return from_model(LlamaForCausalLM(LlamaConfig(**shape)).eval(), torch.device("cpu"))


def seven_texts() -> Corpus:
    """A number of sequences that two processes cannot share evenly."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 64, 2) for _ in range(7)]
    answers = [rng.integers(0, 64, 7 + n) for n in range(7)]
    return Corpus.of(prompts, answers, np.zeros(7, np.float32), np.zeros(7, np.bool_))


def trainer_in(
    out: Path,
    world: World | None = None,
    *,
    shard: Shard = "none",
    pieces: int = 1,
    optimizer: OptimizerName = "adamw",
) -> Trainer:
    """A fresh run in ``out``, or one that goes on with the state there."""
    target = tiny_target()
    config = head_config(target.shape, num_layers=2, block_size=4, path_rank=4, taps=(0, 1))
    head = new_head(target, config, torch.arange(32).view(1, 32), 0)
    trainer = Trainer(
        target,
        head,
        seven_texts(),
        TrainConfig(rows=4, width=24, anchors=3, chunks=1, pieces=pieces, optimizer=optimizer),
        out,
        compiled=False,
        world=world,
        shard=shard,
    )
    trainer.resume()
    return trainer


def quiet(text: str) -> None:
    """Takes what a run reports."""


def main(out: Path) -> None:
    """All runs of the two processes."""

    def train(
        name: str, *, shard: Shard = "none", pieces: int = 1, until: int = STEPS, stop_at: int = 99
    ) -> None:
        trainer = trainer_in(out / name, world, shard=shard, pieces=pieces)
        progress = trainer.run(
            Horizon(steps=STEPS),
            stop_after=until,
            log_every=1,
            # Only the process that does not lead is asked.
            stop_asked=lambda: world.rank == 1 and trainer.progress.step >= stop_at,
            report=quiet,
        )
        said.append(f"{name} {world.rank} {progress.step} {progress.interrupted}")

    said: list[str] = []
    torch.set_num_threads(1)
    with joined() as world:
        train("whole")
        train("head", shard="head", pieces=2)
        train("all", shard="all")
        train("half-all", shard="all", until=2)
        train("from-one", shard="head")
        train("stopped", shard="head", stop_at=1)
        train("stopped")
        timed = trainer_in(out / "timed", world)
        step = timed.run(Horizon(minutes=0.005), report=quiet).step
        said.append(f"timed {world.rank} {step} False")
        (out / f"said-{world.rank}.txt").write_text("\n".join(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
