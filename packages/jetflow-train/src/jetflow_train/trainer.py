"""The training loop: online features, one or many processes, a schedule that always completes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from jetflow_train.distributed import World
from jetflow_train.feed import Feed
from jetflow_train.guard import StepGuard, clip_gradient
from jetflow_train.log import Report, StepLog
from jetflow_train.objectives import Objective
from jetflow_train.optimizer import HeadOptimizer
from jetflow_train.packing import depth_weights
from jetflow_train.schedule import Horizon, learning_rate_factor
from jetflow_train.sharding import Shard, check_optimizer, check_shard, shard_losses, shard_target
from jetflow_train.shards import Corpus
from jetflow_train.sinks.base import MetricSink
from jetflow_train.sinks.choose import open_sinks
from jetflow_train.state import STATE, Progress, load_state, save_state, whole_head
from jetflow_train.step import KeptStates, StepFunctions, StepLosses
from jetflow_train.stopwatch import Stopwatch
from jetflow_train.target import AnyTarget, FrozenTarget
from jetflow_train.train_config import TrainConfig

Evaluate = Callable[[DraftHead, int], Mapping[str, float]]
"""Figures of a head, given with the number of steps that it has learnt."""


class Trainer:
    """One run: head, optimizer and progress.

    Args:
        target: the frozen target; with ``shard`` "all" in host memory or on the device.
        head: fp32 weights where the target is; trained in place.
        corpus: what the target wrote.
        config: settings.
        out: run folder, for the state and the metrics.
        compiled: compile the step's parts (a GPU); False runs them eagerly.
        world: the processes that share each step's rows.
        shard: what these processes hold only a part of.
        sink: takes the figures; the metrics file in ``out`` if left out.
        kept: the target's hidden states of ``corpus``; None: each step captures its own.

    Raises:
        ValueError: the rows of a step cannot be shared among the processes, or nothing can be
            sharded among them.
    """

    def __init__(
        self,
        target: FrozenTarget,
        head: DraftHead,
        corpus: Corpus,
        config: TrainConfig,
        out: Path,
        *,
        compiled: bool,
        world: World | None = None,
        shard: Shard = "none",
        sink: MetricSink | None = None,
        kept: KeptStates | None = None,
    ) -> None:
        self.world = world or World()
        check_shard(shard, self.world)
        check_optimizer(config.optimizer, shard)
        self.head, self.config, self.out = head, config, out
        self.feed = Feed(corpus, config, head.config.max_depth, self.world.rank, self.world.size)
        objective = Objective(config.loss, config.loss_temperature)
        self.functions = (StepFunctions.compiled if compiled else StepFunctions.plain)(objective)
        self.target: AnyTarget = shard_target(target, self.world) if shard == "all" else target
        # One copy in the head's type: gathered rows then need no cast in every step.
        self.embedding = self.target.embedding.to(next(head.parameters()).dtype)
        self.losses = self._losses(shard, kept)
        # Only now: sharding puts other tensors in the place of the head's parameters.
        self.optimizer = HeadOptimizer(head, config)
        self.progress, self.guard = Progress(), StepGuard()
        self.log = StepLog(self.world, self.feed, self.guard, sink or open_sinks(out))
        self._settings = {
            "train": asdict(config),
            "head": asdict(head.config),
            "target": dict(target.fingerprint),
            "sequences": len(corpus),
            "tokens": len(corpus.tokens),
            # They differ from captured ones by rounding, so a run has the ones or the others.
            "cache": kept is not None,
        }

    def _losses(
        self, shard: Shard, kept: KeptStates | None
    ) -> StepLosses | DistributedDataParallel:
        parts = (self.target, self.head, self.embedding, self.config.chunks, self.functions)
        if shard != "none":
            return shard_losses(*parts, self.world)
        losses = StepLosses(*parts, kept)
        return losses if self.world.size == 1 else DistributedDataParallel(losses)

    def run(
        self,
        horizon: Horizon,
        *,
        stop_after: int | None = None,
        log_every: int = 25,
        save_seconds: float = 60.0,
        evaluate: Evaluate | None = None,
        evaluate_seconds: float = 120.0,
        stop_asked: Callable[[], bool] = lambda: False,
        report: Report = print,
    ) -> Progress:
        """Train until the horizon, ``stop_after`` steps in all, or a wish to stop; then save.

        The processes take the same number of steps, whichever of them is asked to stop.

        Args:
            horizon: where the schedule ends.
            stop_after: end here, within the schedule.
            log_every: steps between two entries of the metrics.
            save_seconds: time between two saved states.
            evaluate: called by the leading process between steps with a copy of the head; its
                time is no training time, and the steps do not depend on it.
            evaluate_seconds: training time between two evaluations.
            stop_asked: asked before each step, in every process.
            report: receives a line with each entry.

        Raises:
            DivergedError: several steps in a row had no finite gradient.
        """
        watch, progress = Stopwatch(self.progress.seconds), self.progress
        saved, evaluated = time.monotonic(), progress.seconds
        while True:
            share, save, look, stop = self._agree(
                horizon.progress(progress.seconds, progress.step),
                time.monotonic() - saved > save_seconds,
                evaluate is not None and progress.seconds - evaluated >= evaluate_seconds,
                stop_asked(),
            )
            progress.interrupted = stop
            if stop or share >= 1 or (stop_after is not None and progress.step >= stop_after):
                break
            if save:
                self.save()
                saved = time.monotonic()
            if look:
                with watch.paused():
                    self._evaluate(evaluate)
                evaluated = progress.seconds
            self.log.add(self._step(share))
            if not watch.running:
                # The first step of a process compiles.
                self._synchronize()
                watch.start()
            progress.seconds = watch.seconds
            if progress.step % log_every == 0:
                self.log.flush(progress, share, report)
        self._synchronize()
        self.log.flush(progress, share, report)
        self.guard.check_learnt(progress.step)
        self.save()
        # A launcher may end all processes with the first, so that one is the one that writes.
        self.world.wait()
        return progress

    def _agree(
        self, share: float, save: bool, look: bool, stop: bool
    ) -> tuple[float, bool, bool, bool]:
        """The leading process's clock and what anybody was asked: one answer everywhere."""
        leads = self.world.leads
        mine = [share, float(save), float(look)] if leads else [0.0, 0.0, 0.0]
        share, saves, looks, stops = self.world.total([*mine, float(stop)])
        return share, saves > 0, looks > 0, stops > 0

    def _step(self, share: float) -> Tensor:
        config, step, depth = self.config, self.progress.step, self.head.config.max_depth
        factor = learning_rate_factor(share, config.warmup, config.floor)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        batches = [self.feed.batch(step, piece) for piece in range(config.pieces)]
        weights = [depth_weights(b.reach, depth, config.gamma, b.fill) for b in batches]
        (total,) = self.world.total([sum(float(w.sum()) for w in weights)])
        self.optimizer.zero_grad()
        seen = []
        for batch, weight in zip(batches, weights, strict=True):
            with self._exchange(last=batch is batches[-1]):
                losses = self.losses(batch, weight / np.float32(total))
                # Gradients are averaged over the processes, losses are parts of one sum.
                (losses.sum() * self.world.size).backward()
            seen.append(losses.detach())
        norm = clip_gradient(self.head.parameters(), config.clip)
        self.guard.arm(self.optimizer, norm)
        self.optimizer.step()
        self.progress.step += 1
        self.progress.loss_rows += config.rows * config.anchors * depth
        return torch.cat([torch.stack(seen).sum(0), norm[None].to(seen[0].dtype)])

    def _exchange(self, *, last: bool) -> AbstractContextManager[object]:
        """Whole gradients travel once a step, with its last piece; sharded ones with each."""
        if last or not isinstance(self.losses, DistributedDataParallel):
            return nullcontext()
        context: AbstractContextManager[object] = self.losses.no_sync()
        return context

    def _evaluate(self, evaluate: Evaluate | None) -> None:
        began, copy = time.monotonic(), self.whole_head()
        if copy is not None and evaluate is not None:
            values = evaluate(copy, self.progress.step)
            self.log.evaluation(self.progress, values, time.monotonic() - began)
        # The others wait here, where no device's time limit runs.
        self.world.wait()

    def whole_head(self) -> DraftHead | None:
        """A copy of the head for the leading process, None for the others; all must call this."""
        return whole_head(self.head, self.target.device, leads=self.world.leads)

    def _synchronize(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize()

    def save(self) -> None:
        """Write weights, optimizer and progress so that ``resume`` goes on exactly.

        The leading process writes, all must call this; any number of processes may resume, with
        any sharding.

        Raises:
            DivergedError: a weight is not finite; nothing is written.
        """
        parts = (self.head, self.optimizer.parts, self.progress, self._settings)
        save_state(self.out / STATE, *parts, leads=self.world.leads)

    def resume(self) -> bool:
        """Go on from the state in the run folder; False where there is none.

        Raises:
            DataMismatchError: the state was made with other settings.
        """
        path = self.out / STATE
        if not path.exists():
            return False
        self.progress = load_state(path, self.head, self.optimizer.parts, self._settings)
        return True
