"""The training loop: online features, one or many processes, a schedule that always completes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from jetflow_train.distributed import World
from jetflow_train.files import write_atomic
from jetflow_train.guard import DivergedError, StepGuard
from jetflow_train.objectives import Objective
from jetflow_train.pace import pace
from jetflow_train.packing import Batch, build_batch, depth_weights, pack
from jetflow_train.schedule import Horizon, learning_rate_factor
from jetflow_train.shards import Corpus, check_same
from jetflow_train.sinks.base import MetricSink
from jetflow_train.sinks.choose import open_sinks
from jetflow_train.step import StepFunctions, StepLosses
from jetflow_train.target import FrozenTarget
from jetflow_train.train_config import TrainConfig

STATE = "state.pt"


@dataclass(slots=True)
class Progress:
    """Where a run stands."""

    step: int = 0
    seconds: float = 0.0
    loss_rows: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)


class Trainer:
    """One run: head, optimizer and progress.

    Args:
        target: the frozen target.
        head: fp32 weights on the target's device; trained in place.
        corpus: what the target wrote.
        config: settings.
        out: run folder, for the state and the metrics.
        compiled: compile the step's parts (a GPU); False runs them eagerly.
        world: the processes that share each step's rows.
        sink: takes the figures; the metrics file in ``out`` if left out.

    Raises:
        ValueError: the rows of a step cannot be shared among the processes.
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
        sink: MetricSink | None = None,
    ) -> None:
        self.target, self.head, self.corpus = target, head, corpus
        self.config, self.out = config, out
        self.world = world or World()
        self.sink = sink or open_sinks(out)
        self.piece_rows = config.rows_of_a_piece(self.world.size)
        objective = Objective(config.loss, config.loss_temperature)
        self.functions = (StepFunctions.compiled if compiled else StepFunctions.plain)(objective)
        self.progress, self.guard = Progress(), StepGuard()
        # One copy in the head's type: gathered rows then need no cast in every step.
        self.embedding = target.embedding.to(next(head.parameters()).dtype)
        losses = StepLosses(target, head, self.embedding, config.chunks, self.functions)
        self.losses = losses if self.world.size == 1 else DistributedDataParallel(losses)
        self.optimizer = _optimizer(head, config)
        self._epoch = -1
        self._rows: list[NDArray[np.int64]] = []
        self._packer = ThreadPoolExecutor(1, thread_name_prefix="pack")
        self._next: tuple[int, Future[list[NDArray[np.int64]]]] | None = None

    def run(
        self,
        horizon: Horizon,
        *,
        stop_after: int | None = None,
        log_every: int = 25,
        save_seconds: float = 60.0,
        report: Callable[[str], None] = print,
    ) -> Progress:
        """Train until the horizon (or ``stop_after`` steps in all), then save.

        The first step of a process, which compiles, does not count as time.

        Raises:
            DivergedError: several steps in a row had no finite gradient.
        """
        last_save = time.monotonic()
        clock: float | None = None
        base_seconds = self.progress.seconds
        sums: list[Tensor] = []
        while (share := self._share(horizon)) < 1:
            if stop_after is not None and self.progress.step >= stop_after:
                break
            sums.append(self._step(share))
            if clock is None:
                self._synchronize()
                clock = time.monotonic()
            if self.progress.step % log_every == 0:
                self._log(sums, share, report)
                sums = []
            self.progress.seconds = base_seconds + time.monotonic() - clock
            if time.monotonic() - last_save > save_seconds:
                self.save()
                last_save = time.monotonic()
        if sums:
            self._log(sums, self._share(horizon), report)
        self._synchronize()
        self.save()
        return self.progress

    def _share(self, horizon: Horizon) -> float:
        return self.world.from_lead(horizon.progress(self.progress.seconds, self.progress.step))

    def batch(self, step: int, piece: int = 0) -> Batch:
        """This process's rows of one piece of a step; they depend on seed, step and place alone."""
        config = self.config
        first = (self.world.rank * config.pieces + piece) * self.piece_rows
        return build_batch(
            self.corpus,
            self.sequences(step)[first : first + self.piece_rows],
            width=config.width,
            anchors=config.anchors,
            depth=self.head.config.max_depth,
            key=(config.seed, step),
            first_row=first,
        )

    def sequences(self, step: int) -> list[NDArray[np.int64]]:
        """Numbers of the sequences in each row of a step, over all processes."""
        rows = self.config.rows
        if self._epoch < 0:
            self._load_epoch(0)
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._load_epoch(epoch)
        # Epochs differ by a few rows in length; all count as long as the first.
        place %= len(self._rows) // rows
        return self._rows[place * rows : (place + 1) * rows]

    def _load_epoch(self, epoch: int) -> None:
        config = self.config
        self._rows = self._packed(epoch)
        number = len(self._rows) // config.rows
        if number < 1:
            raise ValueError(
                f"the data fills {len(self._rows)} rows of {config.width} tokens, "
                f"a step needs {config.rows}"
            )
        if epoch == 0:
            self._per_epoch = number
        self._epoch = epoch

    def _packed(self, epoch: int) -> list[NDArray[np.int64]]:
        # Packing takes seconds: the next epoch is packed while this one trains.
        def start(number: int) -> Future[list[NDArray[np.int64]]]:
            config = self.config
            return self._packer.submit(pack, self.corpus, config.width, config.seed, number)

        ready = self._next[1] if self._next and self._next[0] == epoch else start(epoch)
        rows = ready.result()
        self._next = (epoch + 1, start(epoch + 1))
        return rows

    def _step(self, share: float) -> Tensor:
        config, step = self.config, self.progress.step
        factor = learning_rate_factor(share, config.warmup, config.floor)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        batches = [self.batch(step, piece) for piece in range(config.pieces)]
        weights = [depth_weights(b.reach, self.head.config.max_depth, config.gamma)
                   for b in batches]  # fmt: skip
        (total,) = self.world.total([sum(float(w.sum()) for w in weights)])
        self.optimizer.zero_grad(set_to_none=True)
        seen = []
        for batch, weight in zip(batches, weights, strict=True):
            with self._exchange(last=batch is batches[-1]):
                losses = self.losses(batch, weight / np.float32(total))
                # Gradients are averaged over the processes, losses are parts of one sum.
                (losses.sum() * self.world.size).backward()
            seen.append(losses.detach())
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), config.clip)
        self.guard.arm(self.optimizer, norm)
        self.optimizer.step()
        self.progress.step += 1
        self.progress.loss_rows += config.rows * config.anchors * self.head.config.max_depth
        return torch.cat([torch.stack(seen).sum(0), norm[None].to(seen[0].dtype)])

    def _exchange(self, *, last: bool) -> AbstractContextManager[object]:
        """Gradients travel once a step, with its last piece."""
        if last or not isinstance(self.losses, DistributedDataParallel):
            return nullcontext()
        context: AbstractContextManager[object] = self.losses.no_sync()
        return context

    def _log(self, sums: list[Tensor], share: float, report: Callable[[str], None]) -> None:
        progress = self.progress
        rows = torch.stack(sums).tolist()
        steps = list(range(progress.step - len(rows), progress.step))
        broken = self.guard.judge(steps, [row[2] for row in rows])
        good = [row for step, row in zip(steps, rows, strict=True) if step not in broken]
        base, path = self.world.total([_mean(good, 0), _mean(good, 1)])
        rate = progress.loss_rows / progress.seconds if progress.seconds else 0.0
        entry: dict[str, Any] = {
            "step": progress.step, "seconds": round(progress.seconds, 2), "base_loss": base,
            "path_loss": path, "grad_norm": _mean(good, 2), "progress": share,
            "loss_rows_per_second": rate,
        }  # fmt: skip
        if broken:
            entry["skipped"] = {step: [r.tolist() for r in self.sequences(step)] for step in broken}
        progress.history.append(entry)
        if not self.world.leads:
            return
        self.sink.write(progress.step, entry)
        report(
            f"step {progress.step} ({100 * share:.0f} %) base {base:.3f} path {path:.3f} "
            f"norm {entry['grad_norm']:.2f} {rate:,.0f} rows/s"
            f"{pace(progress.step, progress.seconds, share)}"
        )
        for step, named in entry.get("skipped", {}).items():
            report(f"step {step} skipped, its gradient is not finite; sequences {named}")

    def _synchronize(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize()

    def save(self) -> None:
        """Write weights, optimizer and progress so that ``resume`` goes on exactly.

        Only the leading process writes; any number of processes may resume.

        Raises:
            DivergedError: a weight is not finite; nothing is written.
        """
        if not self.world.leads:
            return
        for name, parameter in self.head.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise DivergedError(f"{name} is not finite at step {self.progress.step}")
        progress = self.progress
        state = {
            "head": self.head.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": progress.step,
            "seconds": progress.seconds,
            "loss_rows": progress.loss_rows,
            "settings": self._settings(),
        }
        write_atomic(self.out / STATE, lambda temporary: torch.save(state, temporary))

    def resume(self) -> bool:
        """Go on from the state in the run folder; False where there is none.

        Raises:
            DataMismatchError: the state was made with other settings.
        """
        path = self.out / STATE
        if not path.exists():
            return False
        state = torch.load(path, map_location=self.target.device, weights_only=True)
        check_same(state["settings"], self._settings(), path)
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(
            step=state["step"], seconds=state["seconds"], loss_rows=state["loss_rows"]
        )
        return True

    def _settings(self) -> dict[str, Any]:
        return {
            "train": asdict(self.config),
            "head": asdict(self.head.config),
            "target": dict(self.target.fingerprint),
            "sequences": len(self.corpus),
            "tokens": len(self.corpus.tokens),
        }


def _optimizer(head: DraftHead, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW with a rate of its own for the path term; fused, so that steps can be skipped."""
    path = list(head.path.parameters()) if head.path is not None else []
    ids = {id(parameter) for parameter in path}
    base = [parameter for parameter in head.parameters() if id(parameter) not in ids]
    groups: list[dict[str, Any]] = [{"params": base, "peak": config.learning_rate}]
    if path:
        groups.append({"params": path, "peak": config.path_learning_rate})
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )


def _mean(rows: list[list[float]], column: int) -> float:
    return sum(row[column] for row in rows) / len(rows) if rows else float("nan")
