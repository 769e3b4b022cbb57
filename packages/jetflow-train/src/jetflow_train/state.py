"""The state of a run on disk: whole tensors, whatever the number of processes and the sharding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from jetflow_core.head.model import DraftHead
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from jetflow_train.files import write_atomic
from jetflow_train.guard import DivergedError
from jetflow_train.shards import DataMismatchError, check_same

STATE = "state.pt"
FORMAT = "jetflow-state/2"

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass(slots=True)
class Progress:
    """Where a run stands."""

    step: int = 0
    seconds: float = 0.0
    """Training time: without the first step of a process, which compiles, and evaluations."""
    loss_rows: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    """It was asked to stop; its state is saved."""


def save_state(
    path: Path,
    head: DraftHead,
    optimizers: Sequence[torch.optim.Optimizer],
    progress: Progress,
    settings: Mapping[str, Any],
    *,
    leads: bool,
) -> None:
    """Write everything that ``load_state`` needs; all processes of the run call this.

    Before the first step there is nothing to write.

    Args:
        path: the file; only the process that ``leads`` writes it.
        head: whole or sharded.
        optimizers: of the head.
        progress: where the run stands.
        settings: what a resumed run must share.
        leads: whether this process writes.

    Raises:
        DivergedError: a weight is not finite; nothing is written.
    """
    weights = _whole_weights(head)
    if leads:
        for name, weight in weights.items():
            if not bool(torch.isfinite(weight).all()):
                raise DivergedError(f"{name} is not finite at step {progress.step}")
    if not progress.step:
        # The optimizer has nothing to tell yet, and torch would make it take a step to have some.
        return
    moments = get_optimizer_state_dict(head, optimizers, options=_WHOLE)
    if not leads:
        return
    state = {
        "format": FORMAT,
        "head": weights,
        "optimizer": moments,
        "step": progress.step,
        "seconds": progress.seconds,
        "loss_rows": progress.loss_rows,
        "settings": dict(settings),
    }
    write_atomic(path, lambda temporary: torch.save(state, temporary))


def load_state(
    path: Path,
    head: DraftHead,
    optimizers: Sequence[torch.optim.Optimizer],
    settings: Mapping[str, Any],
) -> Progress:
    """Put a stored state into ``head`` and ``optimizers``; each process reads the file.

    Raises:
        DataMismatchError: the state cannot be read, has another format, or was made with other
            settings.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, UnpicklingError, ValueError) as error:
        raise DataMismatchError(f"{path} is no readable state of a run: {error}") from error
    if not isinstance(state, dict):
        raise DataMismatchError(f"{path} is no state of a run")
    check_same({"format": state.get("format")}, {"format": FORMAT}, path)
    check_same(state["settings"], settings, path)
    options = StateDictOptions(full_state_dict=True)
    set_model_state_dict(head, state["head"], options=options)
    set_optimizer_state_dict(head, optimizers, state["optimizer"], options=options)
    return Progress(step=state["step"], seconds=state["seconds"], loss_rows=state["loss_rows"])


def whole_head(head: DraftHead, device: torch.device, *, leads: bool) -> DraftHead | None:
    """A copy of ``head`` with whole weights on ``device``; all processes of the run call this.

    None comes back where ``leads`` is False.
    """
    weights = _whole_weights(head)
    if not leads:
        return None
    with torch.device("meta"):
        copy = DraftHead(head.config)
    own = {name: weight.to(device, copy=True) for name, weight in weights.items()}
    copy.load_state_dict(own, assign=True)
    return copy


def _whole_weights(head: DraftHead) -> dict[str, Tensor]:
    """Weights by name in host memory; empty in processes other than the first."""
    found = get_model_state_dict(head, options=_WHOLE)
    return {name: weight for name, weight in found.items() if isinstance(weight, Tensor)}
