"""The training loop: one GPU (or a CPU), online features, a schedule that always completes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from numpy.typing import NDArray
from torch import Tensor

from jetflow_train.files import write_atomic
from jetflow_train.objectives import Objective, ObjectiveName
from jetflow_train.packing import Batch, build_batch, pack
from jetflow_train.schedule import Horizon, learning_rate_factor
from jetflow_train.shards import Corpus, check_same
from jetflow_train.step import StepFunctions, StepShape, training_losses
from jetflow_train.target import FrozenTarget

STATE = "state.pt"


class DivergedError(RuntimeError):
    """The loss stopped being finite; the last good state on disk is untouched."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """Every setting that changes what is learnt.

    Raises:
        ValueError: on construction, naming the field and its range.
    """

    rows: int = 32
    """Packed rows a step."""
    width: int = 512
    """Tokens of a row."""
    anchors: int = 80
    """Blocks drawn in each row."""
    chunks: int = 4
    """Pieces in which the loss is computed; more need less memory."""
    learning_rate: float = 1.5e-3
    path_learning_rate: float = 3e-3
    warmup: float = 0.04
    floor: float = 0.06
    loss: ObjectiveName = "forward_kl"
    loss_temperature: float = 1.0
    gamma: float = 4.0
    """Depth d weighs exp(-(d - 1) / gamma); 0 weighs all depths alike."""
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rows", "width", "anchors", "chunks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if self.rows % self.chunks:
            raise ValueError(f"rows {self.rows} is no multiple of chunks {self.chunks}")
        Objective(self.loss, self.loss_temperature)
        for name in ("learning_rate", "path_learning_rate", "clip"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if not 0 <= self.gamma < float("inf"):
            raise ValueError(f"gamma must be 0 or above and finite, got {self.gamma}")
        for name in ("warmup", "floor"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")


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
    ) -> None:
        self.target, self.head, self.corpus = target, head, corpus
        self.config, self.out = config, out
        objective = Objective(config.loss, config.loss_temperature)
        make = StepFunctions.compiled if compiled else StepFunctions.plain
        self.functions = make(objective)
        self.shape = StepShape(chunks=config.chunks, gamma=config.gamma)
        self.progress = Progress()
        # One copy in the head's type: gathered rows then need no cast in every step.
        self.embedding = target.embedding.to(next(head.parameters()).dtype)
        path = list(head.path.parameters()) if head.path is not None else []
        ids = {id(parameter) for parameter in path}
        base = [parameter for parameter in head.parameters() if id(parameter) not in ids]
        groups: list[dict[str, Any]] = [{"params": base, "peak": config.learning_rate}]
        if path:
            groups.append({"params": path, "peak": config.path_learning_rate})
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=target.device.type == "cuda",
        )
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
            DivergedError: the loss is not finite.
        """
        last_save = time.monotonic()
        clock: float | None = None
        base_seconds = self.progress.seconds
        sums: list[Tensor] = []
        while horizon.progress(self.progress.seconds, self.progress.step) < 1:
            if stop_after is not None and self.progress.step >= stop_after:
                break
            share = horizon.progress(self.progress.seconds, self.progress.step)
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
            self._log(sums, horizon.progress(self.progress.seconds, self.progress.step), report)
        self._synchronize()
        self.save()
        return self.progress

    def batch(self, step: int) -> Batch:
        """The batch of a step; it depends on the seed and the step alone."""
        config = self.config
        if self._epoch < 0:
            self._load_epoch(0)
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            self._load_epoch(epoch)
        # Epochs differ by a few rows in length; all count as long as the first.
        place %= len(self._rows) // config.rows
        rows = self._rows[place * config.rows : (place + 1) * config.rows]
        return build_batch(
            self.corpus,
            rows,
            width=config.width,
            anchors=config.anchors,
            depth=self.head.config.max_depth,
            key=(config.seed, step),
        )

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
        config = self.config
        factor = learning_rate_factor(share, config.warmup, config.floor)
        for group in self.optimizer.param_groups:
            group["lr"] = group["peak"] * factor
        losses = training_losses(
            self.target,
            self.head,
            self.embedding,
            self.batch(self.progress.step),
            self.shape,
            self.functions,
        )
        self.optimizer.zero_grad(set_to_none=True)
        (losses.base + losses.path).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), config.clip)
        self.optimizer.step()
        self.progress.step += 1
        self.progress.loss_rows += losses.base_rows.numel()
        return torch.stack([losses.base.detach(), losses.path.detach(), norm])

    def _log(self, sums: list[Tensor], share: float, report: Callable[[str], None]) -> None:
        base, path, norm = torch.stack(sums).mean(0).tolist()
        progress = self.progress
        if not all(map(_finite, (base, path, norm))):
            raise DivergedError(
                f"loss {base} / {path}, gradient norm {norm} in steps up to {progress.step}"
            )
        rate = progress.loss_rows / progress.seconds if progress.seconds else 0.0
        entry = {
            "step": progress.step, "seconds": round(progress.seconds, 2), "base_kl": base,
            "path_kl": path, "grad_norm": norm, "progress": share, "loss_rows_per_second": rate,
        }  # fmt: skip
        progress.history.append(entry)
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "metrics.jsonl").open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(entry) + "\n")
        report(
            f"step {progress.step} ({100 * share:.0f} %) base {base:.3f} path {path:.3f} "
            f"norm {norm:.2f} {rate:,.0f} rows/s"
        )

    def _synchronize(self) -> None:
        if self.target.device.type == "cuda":
            torch.cuda.synchronize()

    def save(self) -> None:
        """Write weights, optimizer and progress so that ``resume`` goes on exactly.

        Raises:
            DivergedError: a weight is not finite; nothing is written.
        """
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


def _finite(value: float) -> bool:
    return value == value and abs(value) != float("inf")
