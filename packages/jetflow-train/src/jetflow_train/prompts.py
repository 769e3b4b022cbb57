"""Prompt files and their token ids under the target's chat template."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jetflow_core.reports.prompt_files import read_prompt_file
from numpy.typing import NDArray

from jetflow_train.files import sha256_file

THINKING = "thinking"
"""Key of the provenance: whether the target was let think; absent where it has no such modes."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptSet:
    """Token ids of prompts, and checksums that say where they came from."""

    tokens: Sequence[NDArray[np.int64]]
    provenance: dict[str, object]


def read_prompts(files: Sequence[Path], limit: int | None = None) -> list[str]:
    """The ``prompt`` of each line of JSONL files, the first ``limit`` of each file.

    Raises:
        ValueError: a file cannot be read or holds no prompt, or a line is no JSON object with a
            non-empty string ``prompt``; the file and the line are named.
    """
    return [line.text for path in files for line in read_prompt_file(path, limit)]


def named_sets(files: Sequence[Path]) -> dict[str, list[Path]]:
    """Each file as a set of its own, called by its name without the ending.

    Raises:
        ValueError: two of them would have one name.
    """
    check_names([path.stem for path in files], "prompt sets")
    return {path.stem: [path] for path in files}


def check_names(names: Sequence[str], what: str) -> None:
    """Refuses names that come twice.

    Raises:
        ValueError: naming the first of them.
    """
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two {what} are called {name!r}; rename one of the files")


def load_prompts(
    target: Path, files: Sequence[Path], limit: int | None = None, thinking: bool | None = None
) -> PromptSet:
    """Prompts of ``files`` as the target's chat template renders them.

    Args:
        target: folder of the target, with its tokenizer and chat template.
        files: JSONL files with the key ``prompt``.
        limit: prompts taken from each file; None: all.
        thinking: whether the target is to think; None: as its template has it.

    Raises:
        ValueError: see ``read_prompts``; or two files have one name, or ``thinking`` is given and
            the template has no such switch.
        TargetLoadError: the tokenizer cannot be loaded.
    """
    prompts = read_prompts(files, limit)
    # Data and provenance tell files apart by their names.
    check_names([path.name for path in files], "prompt files")
    from jetflow_core.loading import load_tokenizer
    from jetflow_core.thinking import mode, render

    tokenizer = load_tokenizer(target)
    template = tokenizer.chat_template
    if not template:
        raise ValueError(f"{target} has no chat template")
    texts = [
        render(tokenizer, [{"role": "user", "content": prompt}], thinking) for prompt in prompts
    ]
    used = mode(tokenizer, thinking)
    # The template has already written the special tokens.
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return PromptSet(
        tokens=[np.asarray(row, dtype=np.int64) for row in rows],
        provenance={
            "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
            "files": {path.name: sha256_file(path) for path in files},
            "limit_per_file": limit,
            **({} if used is None else {THINKING: used}),
        },
    )
