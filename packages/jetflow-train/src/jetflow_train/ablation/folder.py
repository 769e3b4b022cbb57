"""The folder of a study: where things lie, and that it is still the same study."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetflow_train.ablation.locks import lock
from jetflow_train.ablation.study import Study, data_marks
from jetflow_train.files import check_folder, sha256_file, write_json
from jetflow_train.shards import DataMismatchError

FORMAT = "jetflow-study/1"

STUDY = "study"
"""Name of the lock of what the whole study shares; names of runs end with a seed."""


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """Places in a study's folder."""

    path: Path

    @property
    def study(self) -> Path:
        """What the study was begun with."""
        return self.path / "study.json"

    @property
    def answers(self) -> Path:
        """Folder of the target's answers to the held-out prompts."""
        return self.path / "answers"

    @property
    def results(self) -> Path:
        """The report."""
        return self.path / "results.json"

    @property
    def table(self) -> Path:
        """The report's figures to read."""
        return self.path / "table.md"

    @property
    def plots(self) -> Path:
        """Folder of pictures."""
        return self.path / "plots"

    def run(self, name: str) -> Path:
        """Folder of a training, as ``jetflow train`` writes it."""
        return self.path / "runs" / name

    def walks(self, name: str) -> Path:
        """What the head of a training did on the answers."""
        return self.path / "walks" / f"{name}.json"

    def failed(self, name: str) -> Path:
        """Why a training came to nothing, where it did; without this file it is tried again."""
        return self.path / "failed" / f"{name}.json"

    def lock(self, name: str) -> Path:
        """What the process that works on a run, or on the study's own files, holds."""
        return self.path / "locks" / f"{name}.lock"

    def finished(self, name: str) -> bool:
        """Whether a training is complete: the 8-bit head is the last thing it writes."""
        return (self.run(name) / "head-8bit").is_dir()


def check_study(folder: StudyFolder, study: Study) -> None:
    """Refuses a folder that another plan, other data or other prompts were begun in.

    Data that was missing may come later; nothing may change or go.

    Raises:
        DataMismatchError: naming the first option that differs, with both values.
        OutputError: the folder cannot be written.
    """
    check_folder(folder.path)
    stored = _stored(folder)
    if stored is None:
        return
    wanted = identity(study)
    for name, before in stored["data"].items():
        if name not in wanted["data"]:
            raise DataMismatchError(f"{folder.path} was begun with data called {name}: give it too")
        if before != wanted["data"][name]:
            raise DataMismatchError(f"{folder.path} was begun with other data called {name}")
    for part in ("plan", "prompts"):
        _check_part(folder.path, dict(_flat(stored[part])), dict(_flat(wanted[part])))


def claim(folder: StudyFolder, study: Study, fingerprint: Mapping[str, str]) -> None:
    """Notes what the study is begun, or gone on, with.

    Raises:
        DataMismatchError: it was begun with another target, or with another study since
            ``check_study``.
    """
    with lock(folder.lock(STUDY)):
        check_study(folder, study)
        stored = _stored(folder)
        if stored is not None and stored["target"] != dict(fingerprint):
            raise DataMismatchError(f"{folder.path} was begun with another target")
        write_json(folder.study, {**identity(study), "format": FORMAT, "target": dict(fingerprint)})


def identity(study: Study) -> dict[str, Any]:
    """What must stay as it is, ready for JSON."""
    return {
        "plan": study.plan.to_dict(),
        "prompts": {file.name: sha256_file(file) for file in study.plan.evaluation.prompts},
        "data": data_marks(study.data),
    }


def _stored(folder: StudyFolder) -> dict[str, Any] | None:
    if not folder.study.exists():
        return None
    try:
        stored: Any = json.loads(folder.study.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataMismatchError(f"{folder.study} is not JSON: {error}") from error
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise DataMismatchError(f"{folder.study} is not of format {FORMAT}")
    return stored


def _check_part(path: Path, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*stored, *wanted]):
        before, now = stored.get(name, "nothing"), wanted.get(name, "nothing")
        if before != now:
            raise DataMismatchError(
                f"{path} was begun with another plan: {name} was {before}, now it is {now}"
            )


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by their dotted names; variants by their own."""
    if isinstance(value, Mapping) and (value or not prefix):
        for name, inner in value.items():
            yield from _flat(inner, f"{prefix}.{name}" if prefix else name)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        yield prefix, [each["name"] for each in value]
        for each in value:
            yield from _flat(each, f"{prefix}.{each['name']}")
    else:
        yield prefix, value
