"""Prompt files and their token ids under the target's chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jetflow_train.files import sha256_file


@dataclass(frozen=True, slots=True, eq=False)
class PromptSet:
    """Token ids of prompts, and checksums that say where they came from."""

    tokens: Sequence[NDArray[np.int64]]
    provenance: dict[str, object]


def read_prompts(files: Sequence[Path], limit: int | None = None) -> list[str]:
    """The ``prompt`` of each line of JSONL files, the first ``limit`` of each file.

    Raises:
        ValueError: a line is no JSON object with a non-empty string ``prompt``; the file and the
            line are named.
    """
    prompts = []
    for path in files:
        # Not splitlines(): JSON strings may hold U+2028 and its kin, which end no line here.
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        for number, line in enumerate(lines[:limit], start=1):
            prompts.append(_prompt(line, f"{path}:{number}"))
    return prompts


def _prompt(line: str, where: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{where}: not a JSON object with a `prompt`") from error
    if not isinstance(prompt, str) or not prompt:
        raise ValueError(f"{where}: `prompt` must be a non-empty string, got {prompt!r}")
    return prompt


def load_prompts(target: Path, files: Sequence[Path], limit: int | None = None) -> PromptSet:
    """Prompts of ``files`` as the target's chat template renders them.

    Args:
        target: folder of the target, with its tokenizer and chat template.
        files: JSONL files with the key ``prompt``.
        limit: prompts taken from each file; None: all.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(target))
    template = tokenizer.chat_template
    if not template:
        raise ValueError(f"{target} has no chat template")
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        for prompt in read_prompts(files, limit)
    ]
    # The template has already written the special tokens.
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return PromptSet(
        tokens=[np.asarray(row, dtype=np.int64) for row in rows],
        provenance={
            "chat_template_sha256": hashlib.sha256(template.encode()).hexdigest(),
            "files": {path.name: sha256_file(path) for path in files},
            "limit_per_file": limit,
        },
    )
