"""Whole jobs that the commands call: regenerate and train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jetflow_core.head.checkpoint import HeadInfo, save_head
from jetflow_core.head.model import DraftHead
from jetflow_core.offline import RowBackend

from jetflow_train.answer_server import AnswerServer
from jetflow_train.corpus_text import foreign_folders, thinking_in
from jetflow_train.distributed import World
from jetflow_train.estimate import estimate, size
from jetflow_train.evaluation.after_training import evaluate_sets, pooled_top1
from jetflow_train.evaluation.in_training import StoredAnswerEvaluation
from jetflow_train.evaluation.sets import EvalSets, load_eval_sets
from jetflow_train.evaluation.walkers import Walkers, available_cpus
from jetflow_train.feature_cache import open_cache
from jetflow_train.feed import Feed
from jetflow_train.files import check_folder
from jetflow_train.heads import check_objective, check_stored, start_head, stored_head
from jetflow_train.prompts import load_prompts, named_sets
from jetflow_train.records import write_result, write_start
from jetflow_train.regenerate import RegenerateConfig, regenerate
from jetflow_train.settings import TrainSettings
from jetflow_train.sharding import check_optimizer, check_shard
from jetflow_train.shards import Corpus, load_corpus
from jetflow_train.signals import stop_requests
from jetflow_train.sinks.base import MetricSink
from jetflow_train.sinks.choose import METRICS, open_sinks
from jetflow_train.state import STATE, Progress
from jetflow_train.target import FrozenTarget, load_target
from jetflow_train.trainer import Evaluate, Trainer

Report = Callable[[str], None]


class OutOfMemory(RuntimeError):
    """A step did not fit on the device."""


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
    thinking: bool | None = None,
    max_seconds: float | None = None,
    compiled: bool | None = None,
    backend: RowBackend | None = None,
    server: AnswerServer | None = None,
    report: Report = print,
) -> dict[str, Any]:
    """Answer the prompts of files into a data folder; its manifest comes back.

    ``compiled`` None means: on a GPU; ``backend`` None: the attention installed for the device;
    ``server`` None: the target answers in this process; ``thinking``: as in ``load_prompts``.
    """
    check_folder(out)
    prompts = load_prompts(target_dir, prompt_files, limit, thinking)
    report(f"{len(prompts.tokens):,} prompts x {len(config.temperatures)} temperatures")
    target = open_target(target_dir)
    return regenerate(
        target,
        prompts,
        out,
        config,
        max_seconds=max_seconds,
        compiled=target.device.type == "cuda" if compiled is None else compiled,
        backend=backend,
        server=server,
        report=report,
    )


def run_train(
    settings: TrainSettings,
    *,
    world: World | None = None,
    target: FrozenTarget | None = None,
    stop_asked: Callable[[], bool] = lambda: False,
    report: Report = print,
) -> Path | None:
    """Train a head; its folder comes back, or None from a run that was interrupted.

    Of an interrupted run the state is saved. A dry run trains nothing and stores its untrained
    head. The leading process of ``world`` evaluates and writes; the others return before.

    Args:
        settings: of the run.
        world: the processes that share it; None: this one alone.
        target: the one that ``settings`` name, where it is loaded already.
        stop_asked: asked before each step; a signal interrupts as well.
        report: takes lines of progress.

    Raises:
        ValueError: settings that are refused; the message names them.
        OutOfMemory: a step did not fit on the device.
    """
    world, out = world or World(), settings.out
    say = report if world.leads else _say_nothing
    target_dir = _check(settings, world)
    # Before hours of training, not after them.
    sets = named_sets(settings.eval_prompts)
    thinking = thinking_in(settings.data)
    prompts = load_eval_sets(target_dir, sets, settings.eval_limit, thinking)
    target = target or open_target(target_dir, in_host_memory=settings.shard == "all")
    corpus = load_corpus(settings.data, target.fingerprint)
    say(f"{len(corpus):,} sequences, {len(corpus.tokens):,} tokens")
    for folder in foreign_folders(settings.data):
        say(f"{folder.name} holds what somebody else wrote, not the target's own text")
    head = _first_head(settings, target, corpus)
    settings = settings.resolved(head.config)
    told = estimate(
        target,
        head.config,
        settings.train_config(),
        corpus,
        processes=world.size,
        shard=settings.shard,
    )
    for line in told.lines():
        say(line)
    if settings.dry_run:
        Feed(corpus, settings.train_config(), head.config.max_depth, world.rank, world.size).check()
        start = write_start(settings, target, told) if world.leads else {}
        return _store_untrained(settings, target_dir, head, start) if world.leads else out / "head"
    sink = open_sinks(out, settings.track)
    try:
        trainer = _trainer(settings, target, head, corpus, world, sink, say)
        # Only now: what is refused must leave the folder as it was.
        start = write_start(settings, target, told) if world.leads else {}
        if world.leads and not settings.resume:
            # Of a run that was killed before its first state.
            (out / METRICS).unlink(missing_ok=True)
        evaluate = _evaluation(settings, target, prompts, say)
        progress = _train(trainer, settings, evaluate, stop_asked, say)
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"a step needs more memory than there is (about {size(told.peak)} were estimated): "
            f"more --pieces than {settings.pieces} or --chunks than {settings.chunks} need less "
            "and change nothing else; fewer --anchors or --rows make another run"
        ) from error
    finally:
        sink.close()
    if progress.interrupted:
        say(f"interrupted after step {progress.step}; --resume goes on from there")
        return None
    whole = trainer.whole_head()
    if whole is None:
        return out / "head"
    say(f"{progress.step} steps, {progress.seconds:.0f} s")
    tokenizer = _tokenizer_sha256(target_dir)

    def store(results: Mapping[str, Any]) -> None:
        info = HeadInfo(
            target=target_dir.name,
            tokenizer_sha256=tokenizer,
            top1_by_depth=pooled_top1(results),
            thinking=thinking,
            provenance=write_result(settings, target, start, progress, results),
        )
        for name, eight_bit in (("head", False), ("head-8bit", True)):
            save_head(out / name, whole, info, eight_bit=eight_bit)

    # Evaluation takes minutes, and whatever ends it must not cost the head.
    store({})
    if prompts:
        with Walkers(available_cpus() if target.device.type == "cuda" else 1) as walkers:
            asked = settings.eval_temperatures
            store(evaluate_sets(target, whole, prompts, say, walkers, asked))
    return out / "head"


def _check(settings: TrainSettings, world: World) -> Path:
    """The target's folder, once everything is checked that needs no target."""
    settings.check()
    config, out, start = settings.train_config(), settings.out, settings.start_head
    if settings.cache is not None and world.size > 1:
        raise ValueError(f"--cache is for one process, and {world.size} share this run")
    settings.horizon()
    check_shard(settings.shard, world)
    check_optimizer(config.optimizer, settings.shard)
    config.rows_of_a_piece(world.size)
    if (out / STATE).exists() != settings.resume:
        if settings.resume:
            raise ValueError(f"{out} holds no run to resume")
        raise ValueError(f"{out} already holds a run: go on with --resume, or choose another --out")
    check_folder(out)
    check_objective(config.loss, fresh=start is None and not settings.resume)
    if start is not None:
        check_stored(start, settings.head_options(), settings.init, settings.prefix_fill)
    settings.head_choice()
    if settings.target is not None:
        return settings.target
    from jetflow_core.defaults import default_target

    return default_target()


def _first_head(settings: TrainSettings, target: FrozenTarget, corpus: Corpus) -> DraftHead:
    if settings.start_head is not None:
        return stored_head(settings.start_head, target, prefix_filled=settings.prefix_fill > 0)
    return start_head(target, corpus, settings.head_choice(), settings.seed)


def _trainer(
    settings: TrainSettings,
    target: FrozenTarget,
    head: DraftHead,
    corpus: Corpus,
    world: World,
    sink: MetricSink,
    report: Report,
) -> Trainer:
    kept = None
    if settings.cache is not None:
        taps, width = head.config.target_layer_ids, settings.width
        kept = open_cache(settings.cache, target, corpus, taps, width, report)
    trainer = Trainer(
        target,
        head,
        corpus,
        settings.train_config(),
        settings.out,
        compiled=torch.cuda.is_available() if settings.compile is None else settings.compile,
        world=world,
        shard=settings.shard,
        sink=sink,
        kept=kept,
    )
    if settings.resume:
        trainer.resume()
    taken = trainer.progress.step
    if settings.max_steps is not None and settings.max_steps < taken:
        raise ValueError(
            f"--max-steps {settings.max_steps} is out of range: the run in {settings.out} has "
            f"taken {taken} steps already"
        )
    # Data that fill no step show here and not after files are written.
    trainer.feed.sequences(taken)
    return trainer


def _train(
    trainer: Trainer,
    settings: TrainSettings,
    evaluate: Evaluate | None,
    stop_asked: Callable[[], bool],
    report: Report,
) -> Progress:
    with stop_requests() as signalled:
        return trainer.run(
            settings.horizon(),
            evaluate=evaluate,
            evaluate_seconds=settings.eval_seconds,
            stop_asked=lambda: signalled() or stop_asked(),
            report=report,
        )


def _evaluation(
    settings: TrainSettings, target: FrozenTarget, prompts: EvalSets, say: Report
) -> Evaluate | None:
    if not prompts or settings.eval_seconds == 0:
        return None
    prepared: list[StoredAnswerEvaluation] = []

    def evaluate(head: DraftHead, step: int) -> Mapping[str, float]:
        # Only now: a short run never asks, and answers take a while.
        if not prepared:
            asked = settings.eval_temperatures
            prepared.append(
                StoredAnswerEvaluation.prepare(target, prompts, temperatures=asked, report=say)
            )
        return prepared[0](head, step)

    return evaluate


def _store_untrained(
    settings: TrainSettings, target_dir: Path, head: DraftHead, start: Mapping[str, Any]
) -> Path:
    info = HeadInfo(
        target=target_dir.name,
        tokenizer_sha256=_tokenizer_sha256(target_dir),
        provenance={**start, "steps": 0},
    )
    return save_head(settings.out / "head", head, info)


def _tokenizer_sha256(target_dir: Path) -> str:
    from jetflow_core.fit import tokenizer_fingerprint
    from jetflow_core.loading import load_tokenizer

    return tokenizer_fingerprint(load_tokenizer(target_dir))


def _say_nothing(text: str) -> None:
    """Takes the lines of processes that do not lead."""
