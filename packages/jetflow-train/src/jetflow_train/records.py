"""What a run folder tells of its run: how to give it again, what it began with, what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from jetflow_core.reports.provenance import provenance

from jetflow_train.estimate import Estimate
from jetflow_train.files import sha256_file, write_json, write_text
from jetflow_train.heads import weights_sha256
from jetflow_train.settings import TrainSettings
from jetflow_train.shards import MANIFEST, DataMismatchError
from jetflow_train.state import Progress
from jetflow_train.target import FrozenTarget
from jetflow_train.toml import to_toml

SETTINGS, START, RESULT = "run.toml", "start.json", "result.json"


def write_start(settings: TrainSettings, target: FrozenTarget, told: Estimate) -> Mapping[str, Any]:
    """Store ``settings`` (resolved) and what the run begins with; that comes back.

    A resumed run has begun before: its first record stays.

    Raises:
        DataMismatchError: the run in the folder began with another head.
        OutputError: the folder cannot be written.
    """
    file = settings.out / START
    start: dict[str, Any] = {
        **provenance(str(target.device)),
        "target": dict(target.fingerprint),
        "data": data_sha256(settings.data),
        "start_head": _head(settings.start_head),
        "estimate": told.to_dict(),
    }
    if settings.resume and file.is_file():
        before = json.loads(file.read_text(encoding="utf-8"))
        if before["start_head"] != start["start_head"]:
            raise DataMismatchError(
                f"{settings.out} began with {_named(before['start_head'])}, not with "
                f"{_named(start['start_head'])}: give the same --start-head, or --config "
                f"{settings.out / SETTINGS}"
            )
        start = before
    else:
        write_json(file, start)
    write_text(settings.out / SETTINGS, to_toml(settings.stored()))
    return start


def write_result(
    settings: TrainSettings,
    target: FrozenTarget,
    start: Mapping[str, Any],
    progress: Progress,
    evaluation: Mapping[str, Any],
) -> dict[str, Any]:
    """Store what came of the run, and return it for the head's own provenance."""
    result = {
        **provenance(str(target.device)),
        "target": dict(target.fingerprint),
        "data": data_sha256(settings.data),
        "start_head": start["start_head"],
        "train": asdict(settings.train_config()),
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "loss_rows": progress.loss_rows,
        "memory": {"estimate": start["estimate"]["peak"], "measured": _measured_peak()},
        "evaluation": dict(evaluation),
    }
    write_json(settings.out / RESULT, result)
    plain: dict[str, Any] = json.loads(json.dumps(result))
    return plain


def data_sha256(folders: Sequence[Path]) -> dict[str, str]:
    """Checksum of the manifest of each data folder; it holds those of the shards."""
    return {folder.name: sha256_file(folder / MANIFEST) for folder in folders}


def _head(folder: Path | None) -> dict[str, Any] | None:
    return {"name": folder.name, "sha256": weights_sha256(folder)} if folder else None


def _named(head: Mapping[str, Any] | None) -> str:
    if head is None:
        return "a fresh head"
    return f"the head {head['name']} ({', '.join(sha[:12] for sha in head['sha256'].values())})"


def _measured_peak() -> int | None:
    """Most bytes that torch held on this process's GPU; None without one."""
    return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
