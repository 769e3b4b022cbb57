"""The target's answers to questions: which prompt, at which temperature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jetflow_core.offline import Answer, Job, RowBackend, RowDecoder, row_attention_for
from jetflow_core.reports.loops import looping_tail
from numpy.typing import NDArray

from jetflow_train.draws import AnswerDraws
from jetflow_train.shards import Corpus
from jetflow_train.stack import TargetStack
from jetflow_train.target import FrozenTarget

Prompts = Sequence[NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """Answer prompt ``prompt`` at ``temperature``; 0 is greedy."""

    prompt: int
    temperature: float


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerSettings:
    """How long answers are, and how many are written at once."""

    max_new_tokens: int
    rows: int
    seed: int = 0
    compiled: bool = False


def told_backend(
    target: FrozenTarget, report: Callable[[str], None], backend: RowBackend | None = None
) -> RowBackend:
    """The attention that decodes the target's rows, told in a line of progress.

    Args:
        target: the model that answers.
        report: takes the line.
        backend: one chosen by the caller; None: the one installed for the target's device.

    Raises:
        RuntimeError: the installed one cannot be loaded.
    """
    backend = backend or row_attention_for(target.device)
    report(f"the target's answers are decoded with {backend.name} attention on {target.device}")
    return backend


def answers(
    target: FrozenTarget,
    prompts: Prompts,
    questions: Iterable[tuple[int, Question]],
    settings: AnswerSettings,
    longest_prompt: int,
    *,
    backend: RowBackend | None = None,
) -> Iterator[Answer]:
    """Answers as they get done; each depends on seed, number and question alone.

    Args:
        target: the model that answers.
        prompts: token ids.
        questions: numbered, taken as rows become free.
        settings: length, rows and seed.
        longest_prompt: of those asked about, in tokens.
        backend: attention of a decoding step; None: the one installed for the target's device.

    Raises:
        RuntimeError: the installed one cannot be loaded.
    """
    backend = backend or row_attention_for(target.device)
    decoder = RowDecoder(
        TargetStack(target, compiled=settings.compiled),
        backend.attend,
        rows=settings.rows,
        capacity=longest_prompt + settings.max_new_tokens,
        max_new_tokens=settings.max_new_tokens,
        # Prompts are read in passes of a useful size.
        refill=max(1, settings.rows // 16),
    )
    draws, greedy = AnswerDraws(settings.seed, settings.max_new_tokens), np.zeros(0, np.float32)
    return decoder.answer(
        Job(
            number=number,
            prompt=prompts[question.prompt],
            temperature=question.temperature,
            uniforms=draws.of(number) if question.temperature > 0 else greedy,
        )
        for number, question in questions
    )


def as_corpus(
    prompts: Prompts, questions: Mapping[int, Question], found: Mapping[int, Answer]
) -> Corpus:
    """Prompts and answers in the order of ``questions``; looping tails of greedy ones cut off.

    An answer that ends with a stop token does not end in a loop.
    """
    kept = {
        number: found[number].tokens
        if question.temperature > 0 or found[number].finished
        else found[number].tokens[: looping_tail(found[number].tokens.tolist())]
        for number, question in questions.items()
    }
    return Corpus.of(
        [prompts[question.prompt] for question in questions.values()],
        list(kept.values()),
        np.asarray([question.temperature for question in questions.values()], dtype=np.float32),
        np.asarray([found[number].finished for number in questions], dtype=np.bool_),
    )
