"""A few seconds through every phase at the full training shapes, to find faults early."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from jetflow_train.blocks import block_ropes
from jetflow_train.evaluation.after_training import evaluate_sets
from jetflow_train.evaluation.sets import load_eval_sets
from jetflow_train.heads import HeadChoice, start_head
from jetflow_train.packing import depth_weights
from jetflow_train.regenerate import RegenerateConfig
from jetflow_train.run import open_target, run_regenerate
from jetflow_train.schedule import Horizon
from jetflow_train.shards import load_corpus
from jetflow_train.step import autocast, batch_sight, put
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer

Report = Callable[[str], None]


def run_smoke(
    target_dir: Path,
    prompt_files: Sequence[Path],
    out: Path,
    config: TrainConfig,
    *,
    rows: int = 1024,
    seconds: float = 10.0,
    report: Report = print,
) -> None:
    """Regenerate one group, train for ``seconds``, save, resume, evaluate; report each phase."""
    began = time.monotonic()

    def say(text: str) -> None:
        report(f"[{time.monotonic() - began:6.1f} s] {text}")

    run_regenerate(
        target_dir,
        prompt_files,
        out / "data",
        RegenerateConfig(temperatures=(0.0, 0.8), rows=rows, max_new_tokens=160),
        limit=-(-rows // len(prompt_files)),
        report=say,
    )
    target = open_target(target_dir)
    corpus = load_corpus([out / "data"], target.fingerprint)
    head = start_head(target, corpus, HeadChoice(), config.seed)
    compiled = target.device.type == "cuda"
    trainer = Trainer(target, head, corpus, config, out / "run", compiled=compiled)
    trainer.run(Horizon(steps=1), report=say)
    say("first step done (compilation included)")
    time_parts(trainer, say)
    trainer.run(Horizon(minutes=seconds / 60), log_every=10, report=say)
    say(f"trained; state resumes: {trainer.resume()}")
    if compiled:
        say(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    prompts = load_eval_sets(target_dir, {"smoke": prompt_files[:1]}, 8)
    evaluate_sets(target, trainer.head, prompts, say)


def time_parts(trainer: Trainer, say: Report, repeats: int = 5) -> None:
    """Report the time of a step's parts, each run to completion before the next starts."""
    target, head = trainer.target, trainer.head
    batch = trainer.feed.batch(0)
    tokens, documents, positions, anchors = (
        put(array, target.device)
        for array in (batch.tokens, batch.documents, batch.positions, batch.anchors)
    )
    weights = depth_weights(batch.reach, head.config.max_depth, trainer.config.gamma, batch.fill)
    compiled = replace(target, layer_fn=trainer.functions.layer)
    taps = head.config.target_layer_ids

    def capture() -> None:
        compiled.capture(tokens, positions, batch_sight(target, batch.documents), taps)

    features, _ = compiled.capture(tokens, positions, batch_sight(target, batch.documents), taps)

    def blocks() -> None:
        with autocast(target.device, head):
            ropes = block_ropes(head, positions, anchors, trainer.embedding.dtype)
            out = trainer.functions.blocks(
                head, features, trainer.embedding, tokens, documents, ropes, anchors
            )
        out.sum().backward()

    def losses() -> None:
        trainer.losses(batch, weights)

    def host() -> None:
        trainer.feed.batch(0)

    for name, part in (
        ("host batch", host),
        ("target capture", capture),
        ("head forward and backward", blocks),
        ("capture, head forward and loss", losses),
    ):
        part()
        say(f"{name}: {1000 * _seconds(part, target.device, repeats):.1f} ms")
    head.zero_grad(set_to_none=True)


def _seconds(part: Callable[[], None], device: torch.device, repeats: int) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(repeats):
        part()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.monotonic() - began) / repeats
