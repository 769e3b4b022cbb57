"""Training data from answers that somebody else wrote, marked as what it is.

A head is trained to predict its target, so such text teaches it less than the target's own answers
to the same prompts. It is here for the comparison.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jetflow_core.reports.prompt_files import read_prompt_file
from numpy.typing import NDArray

from jetflow_train.prompts import THINKING, load_prompts
from jetflow_train.shards import (
    Corpus,
    check_same,
    load_shard,
    read_manifest,
    save_shard,
    write_manifest,
)
from jetflow_train.target import FrozenTarget

ORIGIN, CORPUS, TARGET = "origin", "corpus", "target"
"""Key of a manifest, and its values; a manifest without the key is of the target's own text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusTextConfig:
    """Which lines are taken.

    Raises:
        ValueError: on construction, naming the field and its range.
    """

    max_new_tokens: int = 160
    """Lines with longer answers, their stop token included, are skipped and counted."""
    max_prompt_tokens: int = 384
    """So are lines with longer prompts."""
    shard_rows: int = 8192

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_prompt_tokens", "shard_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")


def foreign_folders(folders: Sequence[Path]) -> list[Path]:
    """Those of the data ``folders`` whose text is not the target's own.

    Raises:
        DataMismatchError: a manifest cannot be read.
    """
    found = [(folder, read_manifest(folder) or {}) for folder in folders]
    return [folder for folder, manifest in found if manifest.get(ORIGIN, TARGET) != TARGET]


def thinking_in(folders: Sequence[Path]) -> bool | None:
    """Whether the target was let think aloud in the data; None: not known, or both.

    Raises:
        DataMismatchError: a manifest cannot be read.
    """
    found = {(read_manifest(folder) or {}).get("prompts", {}).get(THINKING) for folder in folders}
    return found.pop() if len(found) == 1 else None


def read_answers(file: Path, limit: int | None = None) -> list[str]:
    """The ``answer`` of each line of a JSONL file, the first ``limit``; empty lines do not count.

    Raises:
        ValueError: a line has no answer or no prompt, or the file cannot be read; the file and
            the line are named.
    """
    # Everything but the answer is checked as for any file of prompts.
    read_prompt_file(file, limit)
    lines = file.read_text(encoding="utf-8").split("\n")
    written = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    return [_answer(json.loads(line), f"{file}:{number}") for number, line in written[:limit]]


def _answer(record: Mapping[str, Any], where: str) -> str:
    text = record.get("answer")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'{where}: needs a text under "answer"')
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{where}: its answer holds half a character, \\ud8..")
    return text


def corpus_data(
    target: FrozenTarget,
    target_dir: Path,
    files: Sequence[Path],
    out: Path,
    config: CorpusTextConfig,
    limit: int | None = None,
) -> dict[str, Any]:
    """Writes prompts and answers of ``files`` as a data folder; its manifest comes back.

    The target reads them as it would read itself: prompts under its chat template, answers up to
    its stop token. A finished folder that was made alike is left as it is.

    Args:
        target: whose heads are to be trained on it.
        target_dir: its folder, with tokenizer and chat template.
        files: JSONL, with texts under ``prompt`` and ``answer`` in each line.
        out: the data folder.
        config: which lines are taken.
        limit: lines taken from each file; None: all.

    Raises:
        ValueError: a line is refused, or none is left; see ``read_answers``.
        DataMismatchError: ``out`` holds other data.
    """
    answers = [answer for file in files for answer in read_answers(file, limit)]
    prompts = load_prompts(target_dir, files, limit)
    settings = {
        ORIGIN: CORPUS,
        "target": target.fingerprint,
        "prompts": prompts.provenance,
        "reading": asdict(config),
    }
    stored = read_manifest(out)
    if stored is not None:
        check_same(stored, settings, out)
        for entry in stored["shards"]:
            load_shard(out, entry)
        return stored
    ids = _answer_ids(target, target_dir, answers)
    kept = [
        index
        for index, (prompt, answer) in enumerate(zip(prompts.tokens, ids, strict=True))
        if len(prompt) <= config.max_prompt_tokens and len(answer) <= config.max_new_tokens
    ]
    if not kept:
        raise ValueError(
            f"no line of at most {config.max_prompt_tokens} tokens of prompt and "
            f"{config.max_new_tokens} of answer in {', '.join(map(str, files))}"
        )
    shards = []
    for number, start in enumerate(range(0, len(kept), config.shard_rows)):
        some = kept[start : start + config.shard_rows]
        part = _part([prompts.tokens[i] for i in some], [ids[i] for i in some], target.stop_tokens)
        shards.append(save_shard(out, number, part, target.shape.vocab_size))
    jobs = {"asked": len(ids), "skipped": len(ids) - len(kept), "answered": len(kept), "missing": 0}
    manifest = {**settings, "shards": shards, "jobs": jobs, "complete": True}
    write_manifest(out, manifest)
    return manifest


def _answer_ids(
    target: FrozenTarget, target_dir: Path, answers: Sequence[str]
) -> list[NDArray[np.int64]]:
    from jetflow_core.loading import load_tokenizer

    tokenizer = load_tokenizer(target_dir)
    rows = tokenizer(list(answers), add_special_tokens=False)["input_ids"]
    own = [tokenizer.eos_token_id] if tokenizer.eos_token_id in target.stop_tokens else []
    # Of several stop tokens the tokenizer's own is the one that ends an answer in a chat.
    stop = [*own, *target.stop_tokens][:1]
    return [np.asarray([*row, *stop], dtype=np.int64) for row in rows]


def _part(
    prompts: Sequence[NDArray[np.int64]],
    answers: Sequence[NDArray[np.int64]],
    stop_tokens: Sequence[int],
) -> Corpus:
    return Corpus.of(
        prompts,
        answers,
        # No temperature wrote them, greedy least of all.
        np.full(len(prompts), np.nan, dtype=np.float32),
        np.full(len(prompts), bool(stop_tokens)),
    )
