"""The target's answers to the held-out prompts: written once, the same for every head."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jetflow_core.offline import RowBackend

from jetflow_train.ablation.locks import lock
from jetflow_train.ablation.plan import EvalPlan
from jetflow_train.answering import told_backend
from jetflow_train.evaluation.answers import Answers, answer_prompts
from jetflow_train.evaluation.figures import set_figures
from jetflow_train.evaluation.sets import HeldOut, held_out_sets, longest_prompt
from jetflow_train.evaluation.walk import StoredText
from jetflow_train.files import write_json
from jetflow_train.prompts import named_sets
from jetflow_train.shards import Corpus, DataMismatchError, load_shard, save_shard
from jetflow_train.target import FrozenTarget

INDEX, FORMAT, LOCK = "answers.json", "jetflow-answers/1", "answers.lock"

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsweredSet:
    """The answers to one set of prompts at one temperature."""

    name: str
    answers: Answers

    @property
    def key(self) -> str:
        """Of this set and temperature."""
        return f"{self.name} {self.answers.temperature:g}"

    def figures(self) -> dict[str, Any]:
        """What is told of the texts, ready for JSON."""
        return {"set": self.name, **set_figures(self.answers)}


def held_out(target: FrozenTarget, target_dir: Path, plan: EvalPlan) -> list[HeldOut]:
    """The prompts of a study as token ids.

    Raises:
        ValueError: a file cannot be read, or prompts and answers do not fit into the target.
    """
    longest = longest_prompt(target.shape.max_positions, plan.max_new_tokens)
    return held_out_sets(target_dir, named_sets(plan.prompts), plan.limit, longest)


def answer_sets(
    folder: Path,
    target: FrozenTarget,
    sets: Sequence[HeldOut],
    plan: EvalPlan,
    *,
    stop: Callable[[], bool],
    report: Report,
) -> Iterator[AnsweredSet]:
    """The answers to each set at each temperature; those in ``folder`` are read from there.

    One process writes at a time; another waits for the set in hand and reads it then.

    Args:
        folder: of the answers.
        target: that answers.
        sets: the prompts.
        plan: how they are answered.
        stop: asked before anything is answered; True: it ends with what is there.
        report: takes lines of progress.

    Raises:
        DataMismatchError: a stored file is damaged, or answers other prompts.
    """
    index = _index(folder, target)
    backend: RowBackend | None = None
    for one in sets:
        for temperature in plan.temperatures:
            key = f"{one.name} {temperature:g}"
            if key not in index["answers"]:
                if stop():
                    return
                with lock(folder / LOCK):
                    index = _index(folder, target)
                    if key not in index["answers"]:
                        backend = backend or told_backend(target, report)
                        index["answers"][key] = _write(
                            folder, target, one, temperature, plan, index, backend
                        )
                        write_json(folder / INDEX, index)
                        report(f"{key}: answered by the target")
            entry = index["answers"][key]
            answers = _read(folder, entry, temperature, plan.max_new_tokens)
            if answers.sha256() != entry["answers_sha256"] or not _same_prompts(answers, one):
                raise DataMismatchError(f"{folder} holds answers to other prompts of {one.name}")
            yield AnsweredSet(name=one.name, answers=answers)


def _index(folder: Path, target: FrozenTarget) -> dict[str, Any]:
    file = folder / INDEX
    if not file.exists():
        return {"format": FORMAT, "target": dict(target.fingerprint), "answers": {}}
    index: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if (index.get("format"), index.get("target")) != (FORMAT, dict(target.fingerprint)):
        raise DataMismatchError(f"{file} is not of format {FORMAT} or of another target")
    return index


def _write(
    folder: Path,
    target: FrozenTarget,
    one: HeldOut,
    temperature: float,
    plan: EvalPlan,
    index: Mapping[str, Any],
    backend: RowBackend,
) -> dict[str, Any]:
    answers = answer_prompts(
        target,
        one.prompts,
        temperature=temperature,
        max_new_tokens=plan.max_new_tokens,
        seed=plan.seed,
        backend=backend,
    )
    count = len(answers.texts)
    corpus = Corpus.of(
        one.prompts,
        [text.tokens[text.prompt_len :] for text in answers.texts],
        np.full(count, temperature, dtype=np.float32),
        np.ones(count, dtype=np.bool_),
    )
    entry = save_shard(folder, len(index["answers"]), corpus, target.shape.vocab_size)
    return {**entry, "cut": answers.cut, "answers_sha256": answers.sha256()}


def _read(folder: Path, entry: Mapping[str, Any], temperature: float, limit: int) -> Answers:
    corpus = load_shard(folder, entry)
    texts = tuple(
        StoredText(
            tokens=corpus.sequence(number).astype(np.int64),
            prompt_len=int(corpus.prompt_len[number]),
            limit=limit,
        )
        for number in range(len(corpus))
    )
    return Answers(texts=texts, temperature=temperature, cut=entry["cut"])


def _same_prompts(answers: Answers, one: HeldOut) -> bool:
    stored = [text.tokens[: text.prompt_len] for text in answers.texts]
    return len(stored) == len(one.prompts) and all(
        np.array_equal(mine, theirs) for mine, theirs in zip(stored, one.prompts, strict=True)
    )
