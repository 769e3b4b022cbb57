"""Let the target answer prompts and store what it wrote.

Every question is one prompt at one temperature. Their order and the cut into shards depend on the
settings alone, and an answer's random numbers on the seed and the question's number alone, so a run
that was killed goes on with the shards that are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jetflow_core.offline import Answer, RowBackend

from jetflow_train.answer_server import AnswerServer, ServerAnswers
from jetflow_train.answering import (
    AnswerSettings,
    Question,
    answers,
    as_corpus,
    told_backend,
)
from jetflow_train.draws import QUESTION_ORDER, generator
from jetflow_train.pace import clock, time_left
from jetflow_train.prompts import PromptSet
from jetflow_train.shards import (
    check_same,
    load_shard,
    read_manifest,
    save_shard,
    write_manifest,
)
from jetflow_train.target import FrozenTarget
from jetflow_train.temperatures import check_temperatures

Answering = Callable[[Iterable[tuple[int, Question]]], Iterator[Answer]]

LIKE_LENGTHS = 64
"""Questions of like length that stay together."""
SILENCE = 30.0
"""Seconds after which a line of progress comes before its shard is complete."""


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
    shard_rows: int = 8192
    """Answers of a shard; what is lost when a run is killed is the shards not yet complete."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "max_prompt_tokens", "rows", "shard_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be >= 1, got {getattr(self, name)}")
        check_temperatures(self.temperatures)


def plan(lengths: Sequence[int], config: RegenerateConfig) -> list[Question]:
    """Every prompt that is short enough at every temperature, in the order of the answers.

    Runs of like length stay together, since prompts are read in passes; the runs are shuffled, so
    that a run ended early has answered prompts of every length.
    """
    kept = [i for i, length in enumerate(lengths) if 1 <= length <= config.max_prompt_tokens]
    asked = [Question(prompt=i, temperature=t) for i in kept for t in config.temperatures]
    asked.sort(key=lambda each: (lengths[each.prompt], each.prompt, each.temperature))
    runs = [asked[i : i + LIKE_LENGTHS] for i in range(0, len(asked), LIKE_LENGTHS)]
    order = generator(QUESTION_ORDER, config.seed, 0).permutation(len(runs))
    return [each for i in order for each in runs[i]]


def regenerate(
    target: FrozenTarget,
    prompts: PromptSet,
    out: Path,
    config: RegenerateConfig,
    *,
    max_seconds: float | None = None,
    compiled: bool = False,
    backend: RowBackend | None = None,
    server: AnswerServer | None = None,
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Answer prompts into shards under ``out``; a folder that is partly there is completed.

    Args:
        target: the model that answers.
        prompts: what it answers.
        out: the data folder.
        config: how it answers.
        max_seconds: start no further shard after this time; None: answer everything.
        compiled: compile the decode step's layers (a GPU).
        backend: attention of a decoding step; None: the one installed for the target's device.
        server: answers in place of the target here; the target is only held against it.
        report: receives a line of progress at the beginning, after each shard, and in between
            where shards take long.

    Returns:
        The manifest.

    Raises:
        DataMismatchError: ``out`` was made by another target or with other settings.
        ValueError: no prompt is short enough, or ``max_seconds`` is no time.
        RuntimeError: the installed attention cannot be loaded, or the server cannot answer for
            this target.
    """
    lengths = [len(tokens) for tokens in prompts.tokens]
    asked = plan(lengths, config)
    if not asked:
        raise ValueError(
            f"no prompt of 1 to {config.max_prompt_tokens} tokens (max_prompt_tokens) among "
            f"{len(lengths)}"
        )
    if max_seconds is not None and not 0 <= max_seconds < float("inf"):
        raise ValueError(f"max_seconds {max_seconds} is out of range: 0 or above, and finite")
    manifest = _open_manifest(target, prompts, out, config, len(asked), server)
    missing = _missing_shards(manifest, asked, config)
    settings = AnswerSettings(
        max_new_tokens=config.max_new_tokens,
        rows=min(config.rows, max(1, len(asked))),
        seed=config.seed,
        compiled=compiled,
    )
    answering = _answering(target, prompts, asked, settings, backend, server, report)
    pace = _Pace(sum(map(len, missing.values())), report)
    found = answering(_numbered(missing, pace, max_seconds))
    done: dict[int, dict[int, Answer]] = {}
    for answer in found:
        shard = answer.number // config.shard_rows
        done.setdefault(shard, {})[answer.number] = answer
        pace.count(answer)
        if len(done[shard]) == len(missing[shard]):
            corpus = as_corpus(prompts.tokens, missing[shard], done.pop(shard))
            manifest["shards"].append(save_shard(out, shard, corpus, target.shape.vocab_size))
            _account(manifest, len(asked))
            write_manifest(out, manifest)
            pace.tell(shard)
    _account(manifest, len(asked))
    write_manifest(out, manifest)
    return manifest


def _answering(
    target: FrozenTarget,
    prompts: PromptSet,
    asked: Sequence[Question],
    settings: AnswerSettings,
    backend: RowBackend | None,
    server: AnswerServer | None,
    report: Callable[[str], None],
) -> Answering:
    """What answers numbered questions: the target in this process, or a server that holds it."""
    if server is not None:
        found = ServerAnswers(
            server, target, prompts.tokens, settings, prompts.tokens[asked[0].prompt]
        )
        report(f"{server.url} answers as {found.model}, and holds this target")
        return found.answer
    return partial(
        answers,
        target,
        prompts.tokens,
        settings=settings,
        longest_prompt=max(len(prompts.tokens[each.prompt]) for each in asked),
        backend=told_backend(target, report, backend),
    )


def _missing_shards(
    manifest: Mapping[str, Any], asked: Sequence[Question], config: RegenerateConfig
) -> dict[int, dict[int, Question]]:
    """The numbered questions of every shard that is not there yet."""
    have = {entry["index"] for entry in manifest["shards"]}
    size = config.shard_rows
    numbered = dict(enumerate(asked))
    return {
        shard: {n: numbered[n] for n in range(shard * size, min((shard + 1) * size, len(asked)))}
        for shard in range(-(-len(asked) // size))
        if shard not in have
    }


def _numbered(
    missing: Mapping[int, Mapping[int, Question]], pace: _Pace, max_seconds: float | None
) -> Iterator[tuple[int, Question]]:
    for questions in missing.values():
        if max_seconds is not None and pace.seconds >= max_seconds:
            return
        yield from questions.items()


class _Pace:
    """Progress in lines: new tokens, their rate so far and since the last line, the time left.

    The first shard waits for kernels to be compiled; the rate since the last line does not.
    """

    def __init__(self, questions: int, report: Callable[[str], None]) -> None:
        self._start, self._report = time.monotonic(), report
        self._questions, self._answered, self._tokens = questions, 0, 0
        self._told = (0.0, 0)
        self._last_line = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def count(self, answer: Answer) -> None:
        self._answered += 1
        self._tokens += len(answer.tokens)
        seconds = self.seconds
        if seconds - self._last_line >= SILENCE and self._answered < self._questions:
            self._last_line = seconds
            self._report(f"{self._so_far(seconds)}, {self._left(seconds)} left")

    def tell(self, shard: int) -> None:
        seconds = self._last_line = self.seconds
        before, known = self._told
        newest = (self._tokens - known) / max(seconds - before, 1e-9)
        self._told = (seconds, self._tokens)
        self._report(
            f"shard {shard} written, {self._so_far(seconds)}, "
            f"{newest:,.0f} in this shard, {self._left(seconds)} left"
        )

    def _so_far(self, seconds: float) -> str:
        return (
            f"{self._answered:,} of {self._questions:,} answers, {self._tokens:,} new tokens, "
            f"{self._tokens / seconds:,.0f} tokens/s"
        )

    def _left(self, seconds: float) -> str:
        return clock(time_left(seconds, self._answered / self._questions))


def _open_manifest(
    target: FrozenTarget,
    prompts: PromptSet,
    out: Path,
    config: RegenerateConfig,
    questions: int,
    server: AnswerServer | None,
) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "target": target.fingerprint,
        "prompts": prompts.provenance,
        "generation": {**asdict(config), "temperatures": list(config.temperatures)},
        # Its rounding and its random numbers are others, so the two are not mixed.
        **({} if server is None else {"answered_by": "server"}),
    }
    # How many sequences run side by side changes no answer.
    del settings["generation"]["rows"]
    stored = read_manifest(out)
    if stored is None:
        asked = len(prompts.tokens) * len(config.temperatures)
        jobs = {"asked": asked, "skipped": asked - questions}
        return {**settings, "shards": [], "jobs": jobs}
    check_same(stored, settings, out)
    # A listed shard that does not read back is refused here, before any work.
    for entry in stored["shards"]:
        load_shard(out, entry)
    return stored


def _account(manifest: dict[str, Any], questions: int) -> None:
    answered = sum(entry["rows"] for entry in manifest["shards"])
    jobs = manifest["jobs"]
    jobs["answered"] = answered
    jobs["missing"] = questions - answered
    manifest["complete"] = jobs["missing"] == 0
