"""Whole jobs that the commands call: regenerate and train."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jetflow_core.head.checkpoint import HeadInfo, save_head
from jetflow_core.head.model import DraftHead

from jetflow_train.distributed import World
from jetflow_train.evaluation.after_training import evaluate_sets, pooled_top1
from jetflow_train.evaluation.sets import load_eval_sets
from jetflow_train.files import check_folder, sha256_file, write_json
from jetflow_train.initialise import head_config, new_head
from jetflow_train.prompts import load_prompts
from jetflow_train.regenerate import RegenerateConfig, regenerate
from jetflow_train.schedule import Horizon
from jetflow_train.sharding import Shard, check_shard
from jetflow_train.shards import MANIFEST, Corpus, load_corpus
from jetflow_train.signals import stop_requests
from jetflow_train.state import STATE
from jetflow_train.target import FrozenTarget, load_target
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadChoice:
    """The shape of a new head; everything else follows the target.

    Raises:
        ValueError: on construction, naming the field and its range.
    """

    num_layers: int = 3
    block_size: int = 16
    path_rank: int = 128
    path_context: bool = True
    """The path term reads its depth's hidden state; without a path term this says nothing."""
    candidate_pool: int = 64
    """Best tokens of a depth among which its candidates are chosen, likewise."""
    causal: bool = True
    taps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        leasts = (("num_layers", 1), ("block_size", 2), ("path_rank", 0), ("candidate_pool", 0))
        for name, least in leasts:
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")


def open_target(path: Path, *, in_host_memory: bool = False) -> FrozenTarget:
    """The target in bf16 on a GPU if there is one, else in fp32 on the CPU.

    ``in_host_memory``: in the same type, but not on the GPU.
    """
    if torch.cuda.is_available():
        device = torch.device("cpu" if in_host_memory else "cuda")
        return load_target(path, device, torch.bfloat16)
    return load_target(path, torch.device("cpu"), torch.float32)


def run_regenerate(
    target_dir: Path,
    prompt_files: Sequence[Path],
    out: Path,
    config: RegenerateConfig,
    *,
    limit: int | None = None,
    max_seconds: float | None = None,
    compiled: bool | None = None,
    report: Report = print,
) -> dict[str, Any]:
    """Answer the prompts of files into a data folder; its manifest comes back.

    ``compiled`` None means: on a GPU.
    """
    check_folder(out)
    prompts = load_prompts(target_dir, prompt_files, limit)
    report(f"{len(prompts.tokens):,} prompts x {len(config.temperatures)} temperatures")
    target = open_target(target_dir)
    return regenerate(
        target,
        prompts,
        out,
        config,
        max_seconds=max_seconds,
        compiled=target.device.type == "cuda" if compiled is None else compiled,
        report=report,
    )


def run_train(
    target_dir: Path,
    data: Sequence[Path],
    out: Path,
    config: TrainConfig,
    choice: HeadChoice,
    horizon: Horizon,
    *,
    eval_sets: Mapping[str, Sequence[Path]] | None = None,
    eval_limit: int = 128,
    resume: bool = False,
    compiled: bool | None = None,
    world: World | None = None,
    shard: Shard = "none",
    report: Report = print,
) -> Path | None:
    """Train a head on data folders; the folder of the finished head comes back.

    None comes back from a run that a signal interrupted; its state is saved.

    The leading process of ``world`` evaluates and writes the head; the others return before.

    Raises:
        ValueError: ``out`` holds a run and ``resume`` is False, or the other way round; or
            ``shard`` cannot be had.
    """
    check_shard(shard, world or World())
    if shard == "all" and eval_sets:
        raise ValueError(
            "shard 'all' leaves no process with a whole target to evaluate with: leave out the "
            "prompts and evaluate the finished head"
        )
    if (out / STATE).exists() != resume:
        if resume:
            raise ValueError(f"{out} holds no run to resume")
        raise ValueError(f"{out} already holds a run: go on with --resume, or choose another --out")
    check_folder(out)
    # Before hours of training, not after them.
    prompts = load_eval_sets(target_dir, eval_sets or {}, eval_limit)
    target = open_target(target_dir, in_host_memory=shard == "all")
    corpus = load_corpus(data, target.fingerprint)
    report(f"{len(corpus):,} sequences, {len(corpus.tokens):,} tokens")
    trainer = Trainer(
        target,
        start_head(target, corpus, choice, config.seed),
        corpus,
        config,
        out,
        compiled=torch.cuda.is_available() if compiled is None else compiled,
        world=world,
        shard=shard,
    )
    if resume:
        trainer.resume()
    with stop_requests() as stop_asked:
        progress = trainer.run(horizon, stop_asked=stop_asked, report=report)
    if progress.interrupted:
        if trainer.world.leads:
            report(f"interrupted after step {progress.step}; --resume goes on from there")
        return None
    head = trainer.whole_head()
    if head is None:
        return out / "head"
    report(f"{progress.step} steps, {progress.seconds:.0f} s")
    results = evaluate_sets(target, head, prompts, report)
    info = HeadInfo(
        target=target_dir.name,
        tokenizer_sha256=_tokenizer_sha256(target_dir),
        top1_by_depth=pooled_top1(results),
        provenance=_provenance(target, data, config, trainer, results),
    )
    for name, eight_bit in (("head", False), ("head-8bit", True)):
        save_head(out / name, head, info, eight_bit=eight_bit)
    return out / "head"


def start_head(target: FrozenTarget, corpus: Corpus, choice: HeadChoice, seed: int) -> DraftHead:
    """A fresh head of the chosen shape, scaled on the first sequences of the corpus."""
    config = head_config(
        target.shape,
        num_layers=choice.num_layers,
        block_size=choice.block_size,
        path_rank=choice.path_rank,
        path_context=choice.path_context and choice.path_rank > 0,
        candidate_pool=choice.candidate_pool if choice.path_rank else 0,
        causal=choice.causal,
        taps=choice.taps,
    )
    width = min(128, len(corpus.tokens))
    rows = min(16, len(corpus.tokens) // width)
    sample = torch.from_numpy(corpus.tokens[: rows * width].astype("int64")).view(rows, width)
    return new_head(target, config, sample.to(target.device), seed)


def _tokenizer_sha256(target_dir: Path) -> str:
    from jetflow_core.fit import tokenizer_fingerprint
    from jetflow_core.loading import load_tokenizer

    return tokenizer_fingerprint(load_tokenizer(target_dir))


def _provenance(
    target: FrozenTarget,
    data: Sequence[Path],
    config: TrainConfig,
    trainer: Trainer,
    results: Mapping[str, Any],
) -> dict[str, Any]:
    provenance = {
        "target": target.fingerprint,
        "data": {path.name: sha256_file(path / MANIFEST) for path in data},
        "train": asdict(config),
        "steps": trainer.progress.step,
        "seconds": round(trainer.progress.seconds, 1),
        "loss_rows": trainer.progress.loss_rows,
        "torch": str(torch.__version__),
        "evaluation": dict(results),
    }
    write_json(trainer.out / "result.json", provenance)
    return json.loads(json.dumps(provenance))
