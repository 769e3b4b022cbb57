"""What the target answers to held-out prompts, whole: loops are told, not cut off."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jetflow_core.offline import RowBackend
from numpy.typing import NDArray

from jetflow_train.answering import AnswerSettings, Question, answers
from jetflow_train.evaluation.walk import StoredText
from jetflow_train.target import FrozenTarget

MAX_NEW_TOKENS = 128
"""Longer greedy texts of a small target loop, and loops raise tau."""
_ROWS = 128


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answers:
    """Answers to the prompts of one set at one temperature, in their order."""

    texts: tuple[StoredText, ...]
    temperature: float
    cut: int
    """Answers that ended at their most tokens, not with a stop token."""

    @property
    def tokens(self) -> int:
        """New tokens of all answers."""
        return sum(len(text.answer) for text in self.texts)

    def sha256(self) -> str:
        """Checksum of all prompts and answers: figures compare where the texts are equal."""
        digest = hashlib.sha256()
        for text in self.texts:
            digest.update(f"{text.prompt_len} {len(text.tokens)};".encode())
            digest.update(text.tokens.astype("<i8").tobytes())
        return digest.hexdigest()


def answer_prompts(
    target: FrozenTarget,
    prompts: Sequence[NDArray[np.int64]],
    *,
    temperature: float = 0.0,
    max_new_tokens: int = MAX_NEW_TOKENS,
    seed: int = 0,
    backend: RowBackend | None = None,
) -> Answers:
    """The target's answer to each of ``prompts``, which are token ids.

    An answer's random numbers depend on the seed and the prompt's number alone, so they are the
    same at every temperature. ``backend`` is the attention that decodes; None: the one installed
    for the target's device.

    Raises:
        ValueError: a prompt and its answer may exceed the target's positions.
        RuntimeError: the installed attention cannot be loaded.
    """
    settings = AnswerSettings(
        max_new_tokens=max_new_tokens,
        rows=min(_ROWS, len(prompts)),
        seed=seed,
        compiled=target.device.type == "cuda",
    )
    asked = [(i, Question(prompt=i, temperature=temperature)) for i in range(len(prompts))]
    longest = max(map(len, prompts))
    decoded = answers(target, prompts, asked, settings, longest, backend=backend)
    found = {one.number: one for one in decoded}
    texts = [
        StoredText(
            tokens=np.concatenate([prompt, found[number].tokens]),
            prompt_len=len(prompt),
            limit=max_new_tokens,
        )
        for number, prompt in enumerate(prompts)
    ]
    cut = sum(not one.finished for one in found.values())
    return Answers(texts=tuple(texts), temperature=temperature, cut=cut)
