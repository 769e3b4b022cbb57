"""What the target answers to held-out prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jetflow_train.decode import BatchDecoder
from jetflow_train.regenerate import Job, answer_group
from jetflow_train.shards import Corpus
from jetflow_train.target import FrozenTarget


def greedy_answers(target: FrozenTarget, prompts: Sequence[NDArray[np.int64]]) -> Corpus:
    """Greedy answers of at most 128 tokens to ``prompts`` of token ids."""
    decoder = BatchDecoder(
        target,
        rows=len(prompts),
        capacity=max(map(len, prompts)) + 128,
        max_new_tokens=128,
    )
    jobs = [Job(prompt=i, temperature=0.0) for i in range(len(prompts))]
    return answer_group(decoder, prompts, jobs, seed=0, number=0)
