"""Held-out prompts as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jetflow_train.prompts import load_prompts

EvalSets = Mapping[str, Sequence[NDArray[np.int64]]]
"""Token ids of prompts by the name of their set."""


def load_eval_sets(
    target_dir: Path, eval_sets: Mapping[str, Sequence[Path]], limit: int
) -> EvalSets:
    """Token ids of the prompts of each set, at most 1024 a prompt, the first ``limit`` of a file.

    Raises:
        ValueError: a file cannot be read, or a set holds no prompt that is short enough.
    """
    found: dict[str, list[NDArray[np.int64]]] = {}
    for name, files in eval_sets.items():
        found[name] = [p for p in load_prompts(target_dir, files, limit).tokens if len(p) <= 1024]
        if not found[name]:
            raise ValueError(f"no prompt of at most 1024 tokens in {', '.join(map(str, files))}")
    return found
