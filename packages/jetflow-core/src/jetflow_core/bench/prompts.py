"""Prompt sets: JSONL files with a key ``prompt``, or the ones that come with the package."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jetflow_core.bench.builtin import SETS
from jetflow_core.reports.prompt_files import PromptLine, read_prompt_file

BUILTIN = "builtin"
ALL_SETS = "all"
"""How reports call the pooled figures of several sets."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one file, or of one built-in subject."""

    name: str
    prompts: tuple[PromptLine, ...]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the texts in their order."""
        texts = json.dumps([prompt.text for prompt in self.prompts])
        return hashlib.sha256(texts.encode()).hexdigest()


def load_sets(
    sources: Sequence[str | Path], *, limit: int | None = None, seed: int = 0
) -> list[PromptSet]:
    """The prompt sets of ``sources``.

    Args:
        sources: JSONL files, each line an object with a key ``prompt``; or "builtin".
        limit: most prompts of a set, drawn with ``seed`` and kept in the file's order; None: all.
        seed: of the draw.

    Raises:
        ValueError: no source, a file that is missing or not of this form, two sets of one name,
            or a limit below 1.
    """
    if not sources:
        raise ValueError("no prompts: name at least one JSONL file, or builtin")
    if limit is not None and limit < 1:
        raise ValueError(f"limit {limit} is out of range: at least 1")
    sets = [found for source in sources for found in _read(source)]
    names = [found.name for found in sets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two prompt sets are called {name!r}; rename one of the files")
    if len(sets) > 1 and ALL_SETS in names:
        raise ValueError(
            f"a prompt set beside others cannot be called {ALL_SETS!r}, which names the pooled "
            "figures of all sets; rename its file"
        )
    return [PromptSet(found.name, _drawn(found.prompts, limit, seed)) for found in sets]


def _drawn(prompts: tuple[PromptLine, ...], limit: int | None, seed: int) -> tuple[PromptLine, ...]:
    if limit is None or limit >= len(prompts):
        return prompts
    chosen = sorted(random.Random(seed).sample(range(len(prompts)), limit))
    return tuple(prompts[index] for index in chosen)


def _read(source: str | Path) -> list[PromptSet]:
    if str(source) == BUILTIN:
        return [
            PromptSet(name, tuple(PromptLine(f"{name}-{i}", text) for i, text in enumerate(texts)))
            for name, texts in SETS.items()
        ]
    return [PromptSet(Path(source).stem, read_prompt_file(source))]
