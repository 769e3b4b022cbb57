"""The data format: token shards beside a manifest that names every one of them.

A shard exists only if the manifest lists it with its checksum; anything else in the folder is left
over from a run that was killed and is written again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from jetflow_train.files import sha256_file, write_atomic, write_json

FORMAT = "jetflow-data/1"
MANIFEST = "manifest.json"


class DataMismatchError(ValueError):
    """Stored data was made with another target or other settings, or is damaged."""


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Sequences of one or more shards: prompt, then answer.

    Attributes:
        tokens: int32 ``[total]``, one sequence after the other.
        offsets: int64 ``[N + 1]``.
        prompt_len: int32 ``[N]``.
        temperature: float32 ``[N]``; 0 is greedy.
        finished: bool ``[N]``: the answer ends with a stop token.
    """

    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    prompt_len: NDArray[np.int32]
    temperature: NDArray[np.float32]
    finished: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.prompt_len)

    def sequence(self, index: int) -> NDArray[np.int32]:
        """Tokens of one sequence."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each sequence ``[N]``."""
        return np.diff(self.offsets)

    @staticmethod
    def of(
        prompts: Sequence[NDArray[np.int64]],
        answers: Sequence[NDArray[np.int64]],
        temperature: NDArray[np.float32],
        finished: NDArray[np.bool_],
    ) -> Corpus:
        """A corpus of prompts and their answers, in order."""
        pieces = [piece for pair in zip(prompts, answers, strict=True) for piece in pair]
        lengths = [len(p) + len(a) for p, a in zip(prompts, answers, strict=True)]
        return Corpus(
            tokens=np.concatenate([*pieces, np.zeros(0, np.int64)]).astype(np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            prompt_len=np.asarray([len(prompt) for prompt in prompts], dtype=np.int32),
            temperature=temperature.astype(np.float32),
            finished=finished.astype(np.bool_),
        )

    @staticmethod
    def joined(parts: Sequence[Corpus]) -> Corpus:
        """All sequences of ``parts``, in order."""
        starts = np.cumsum([0] + [len(part.tokens) for part in parts[:-1]])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=True)]
        total = sum(len(part.tokens) for part in parts)
        return Corpus(
            tokens=np.concatenate([part.tokens for part in parts]),
            offsets=np.concatenate([*offsets, [total]]).astype(np.int64),
            prompt_len=np.concatenate([part.prompt_len for part in parts]),
            temperature=np.concatenate([part.temperature for part in parts]),
            finished=np.concatenate([part.finished for part in parts]),
        )


def save_shard(directory: Path, index: int, corpus: Corpus, vocab_size: int) -> dict[str, Any]:
    """Write one shard; its manifest entry comes back."""
    path = directory / f"tokens-{index:06d}.safetensors"
    narrow = np.uint16 if vocab_size <= 1 << 16 else np.int32
    arrays = {
        "tokens": corpus.tokens.astype(narrow),
        "offsets": corpus.offsets,
        "prompt_len": corpus.prompt_len,
        "temperature": corpus.temperature.astype(np.float16),
        "finished": corpus.finished.astype(np.uint8),
    }
    write_atomic(path, lambda temporary: save_file(arrays, temporary))
    return {
        "name": path.name,
        "index": index,
        "rows": len(corpus),
        "tokens": len(corpus.tokens),
        "sha256": sha256_file(path),
    }


def load_shard(directory: Path, entry: Mapping[str, Any]) -> Corpus:
    """One shard of a manifest.

    Raises:
        DataMismatchError: the file is missing, truncated or not the one that was listed.
    """
    path = directory / entry["name"]
    if not path.is_file():
        raise DataMismatchError(f"{path} is listed in the manifest but missing")
    if sha256_file(path) != entry["sha256"]:
        raise DataMismatchError(f"{path} differs from the checksum in the manifest")
    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise DataMismatchError(f"{path} is no readable shard: {error}") from error
    return Corpus(
        tokens=arrays["tokens"].astype(np.int32),
        offsets=arrays["offsets"],
        prompt_len=arrays["prompt_len"],
        temperature=arrays["temperature"].astype(np.float32),
        finished=arrays["finished"].astype(np.bool_),
    )


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest of a data folder; None where there is none yet.

    Raises:
        DataMismatchError: the file is no manifest of this format.
    """
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataMismatchError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataMismatchError(f"{path} is not of format {FORMAT}")
    shards = manifest.get("shards")
    if not isinstance(manifest.get("target"), dict) or not isinstance(shards, list):
        raise DataMismatchError(f"{path} names no target or no list of shards")
    for entry in shards:
        if not isinstance(entry, dict) or not {"name", "index", "rows", "sha256"} <= set(entry):
            raise DataMismatchError(f"{path} lists a shard without name, index, rows or sha256")
    return manifest


def write_manifest(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Write the manifest, last of all files and atomically."""
    write_json(directory / MANIFEST, {"format": FORMAT, **manifest})


def load_corpus(directories: Sequence[Path], fingerprint: Mapping[str, str]) -> Corpus:
    """All sequences of data folders that the target with ``fingerprint`` wrote.

    Raises:
        DataMismatchError: a folder has no manifest, no shards, another target, or a damaged shard.
    """
    parts = []
    for directory in directories:
        manifest = read_manifest(directory)
        if manifest is None:
            raise DataMismatchError(f"{directory} holds no {MANIFEST}")
        check_same({"target": manifest["target"]}, {"target": dict(fingerprint)}, directory)
        if not manifest["shards"]:
            raise DataMismatchError(f"{directory} holds no shards")
        parts += [load_shard(directory, entry) for entry in manifest["shards"]]
    if not parts:
        raise DataMismatchError("no shards in " + ", ".join(map(str, directories)))
    return Corpus.joined(parts)


def check_same(stored: Mapping[str, Any], wanted: Mapping[str, Any], where: Path) -> None:
    """Refuse settings that differ from stored ones.

    Raises:
        DataMismatchError: naming every field that differs.
    """
    differing = [name for name in wanted if stored.get(name) != wanted[name]]
    if differing:
        details = "; ".join(
            f"{name}: stored {stored.get(name)!r}, wanted {wanted[name]!r}" for name in differing
        )
        raise DataMismatchError(f"{where} was made differently ({details})")
