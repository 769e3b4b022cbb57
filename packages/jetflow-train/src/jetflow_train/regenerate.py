"""Let the target answer prompts and store what it wrote.

Every answer is a job: one prompt at one temperature. Jobs are cut into groups of like length by a
rule that depends on the settings alone, and a group's random numbers depend on the seed and the
group alone, so a run that was killed goes on with the groups that are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jetflow_train.decode import BatchDecoder, Group
from jetflow_train.draws import GROUP_ORDER, GROUP_TOKENS, generator
from jetflow_train.loops import looping_tails
from jetflow_train.prompts import PromptSet
from jetflow_train.shards import (
    Corpus,
    check_same,
    load_shard,
    read_manifest,
    save_shard,
    write_manifest,
)
from jetflow_train.target import FrozenTarget

GROUPS_PER_SHARD = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class RegenerateConfig:
    """How prompts are answered.

    Raises:
        ValueError: on construction, naming the field and its range.
    """

    temperatures: tuple[float, ...] = (0.0, 0.7, 0.8)
    """Each prompt is answered once at each of these; 0 is greedy."""
    max_new_tokens: int = 160
    max_prompt_tokens: int = 384
    """Longer prompts are skipped and counted."""
    rows: int = 2048
    """Sequences decoded at once."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_prompt_tokens", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        if not self.temperatures or not all(0 <= t < math.inf for t in self.temperatures):
            raise ValueError(
                f"temperatures must be >= 0, finite and not empty, got {self.temperatures}"
            )
        if len(set(self.temperatures)) != len(self.temperatures):
            raise ValueError(f"temperatures repeat a value: {self.temperatures}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Answer prompt ``prompt`` at ``temperature``."""

    prompt: int
    temperature: float


def plan_groups(lengths: Sequence[int], config: RegenerateConfig) -> list[list[Job]]:
    """Groups of jobs of like length, greedy ones apart, in a shuffled order.

    The order is shuffled so that a run ended early has answered prompts of every length.
    """
    kept = [i for i, length in enumerate(lengths) if 1 <= length <= config.max_prompt_tokens]
    groups: list[list[Job]] = []
    greedy = [t for t in config.temperatures if t == 0]
    sampled = [t for t in config.temperatures if t > 0]
    for temperatures in (greedy, sampled):
        jobs = [Job(prompt=i, temperature=t) for i in kept for t in temperatures]
        jobs.sort(key=lambda job: (lengths[job.prompt], job.prompt, job.temperature))
        groups += [jobs[i : i + config.rows] for i in range(0, len(jobs), config.rows)]
    order = generator(GROUP_ORDER, config.seed, 0).permutation(len(groups))
    return [groups[i] for i in order]


def answer_group(
    decoder: BatchDecoder,
    prompts: Sequence[NDArray[np.int64]],
    jobs: Sequence[Job],
    seed: int,
    number: int,
) -> Corpus:
    """Answers of one group; the looping tails of greedy answers are cut off."""
    draw = generator(GROUP_TOKENS, seed, number)
    temperatures = np.asarray([job.temperature for job in jobs], dtype=np.float32)
    asked = [prompts[job.prompt] for job in jobs]
    shape = (decoder.max_new_tokens, len(jobs))
    answers = decoder.answer(
        Group(
            prompts=asked,
            temperatures=temperatures,
            uniforms=draw.random(shape, dtype=np.float32),
        )
    )
    stops = decoder.target.stop_tokens
    _cut_loops(answers, temperatures, stops)
    finished = np.asarray([answer[-1] in stops for answer in answers], dtype=np.bool_)
    return Corpus.of(asked, answers, temperatures, finished)


def _cut_loops(
    answers: list[NDArray[np.int64]], temperatures: NDArray[np.float32], stops: Sequence[int]
) -> None:
    # An answer that ends with a stop token does not end in a loop; all others are of one length.
    rows = [r for r, a in enumerate(answers) if temperatures[r] == 0 and a[-1] not in stops]
    if rows:
        for row, tail in zip(
            rows, looping_tails(np.stack([answers[r] for r in rows])), strict=True
        ):
            answers[row] = answers[row][: len(answers[row]) - tail]


def regenerate(
    target: FrozenTarget,
    prompts: PromptSet,
    out: Path,
    config: RegenerateConfig,
    *,
    max_seconds: float | None = None,
    compiled: bool = False,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Answer prompts into shards under ``out``; a folder that is partly there is completed.

    Args:
        target: the model that answers.
        prompts: what it answers.
        out: the data folder.
        config: how it answers.
        max_seconds: start no further group after this time; None: answer everything.
        compiled: compile the decode step's layers (a GPU).
        report: receives a line of progress after each shard.

    Returns:
        The manifest.

    Raises:
        DataMismatchError: ``out`` was made by another target or with other settings.
    """
    lengths = [len(tokens) for tokens in prompts.tokens]
    groups = plan_groups(lengths, config)
    manifest = _open_manifest(target, prompts, out, config, groups)
    have = {entry["index"] for entry in manifest["shards"]}
    longest = max((n for n in lengths if n <= config.max_prompt_tokens), default=1)
    decoder = BatchDecoder(
        target,
        rows=min(config.rows, max((len(group) for group in groups), default=1)),
        capacity=longest + config.max_new_tokens,
        max_new_tokens=config.max_new_tokens,
        compiled=compiled,
    )
    start, written = time.monotonic(), 0
    for shard, first in enumerate(range(0, len(groups), GROUPS_PER_SHARD)):
        if shard in have:
            continue
        elapsed = time.monotonic() - start
        if max_seconds is not None and elapsed >= max_seconds:
            break
        numbers = range(first, min(first + GROUPS_PER_SHARD, len(groups)))
        corpus = Corpus.joined(
            [answer_group(decoder, prompts.tokens, groups[n], config.seed, n) for n in numbers]
        )
        manifest["shards"].append(save_shard(out, shard, corpus, target.shape.vocab_size))
        _account(manifest, groups)
        write_manifest(out, manifest)
        written += int(corpus.lengths.sum() - corpus.prompt_len.sum())
        elapsed = time.monotonic() - start
        report(
            f"shard {shard + 1}/{-(-len(groups) // GROUPS_PER_SHARD)}: {written:,} new tokens, "
            f"{written / elapsed:,.0f} tokens/s"
        )
    _account(manifest, groups)
    write_manifest(out, manifest)
    return manifest


def _open_manifest(
    target: FrozenTarget,
    prompts: PromptSet,
    out: Path,
    config: RegenerateConfig,
    groups: Sequence[Sequence[Job]],
) -> dict[str, Any]:
    settings = {
        "target": target.fingerprint,
        "prompts": prompts.provenance,
        "generation": {**asdict(config), "temperatures": list(config.temperatures)},
    }
    stored = read_manifest(out)
    if stored is None:
        asked = len(prompts.tokens) * len(config.temperatures)
        skipped = asked - sum(len(group) for group in groups)
        return {**settings, "shards": [], "jobs": {"asked": asked, "skipped": skipped}}
    check_same(stored, settings, out)
    # A listed shard that does not read back is refused here, before any work.
    for entry in stored["shards"]:
        load_shard(out, entry)
    return stored


def _account(manifest: dict[str, Any], groups: Sequence[Sequence[Job]]) -> None:
    answered = sum(entry["rows"] for entry in manifest["shards"])
    jobs = manifest["jobs"]
    jobs["answered"] = answered
    jobs["missing"] = sum(len(group) for group in groups) - answered
    manifest["complete"] = jobs["missing"] == 0
