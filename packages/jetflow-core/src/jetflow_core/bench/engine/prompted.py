"""The prompts of a run, as token ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jetflow_core.bench.engine.settings import EngineSettings
from jetflow_core.bench.prompts import load_sets
from jetflow_core.loading import load_tokenizer


def random_tokens(settings: EngineSettings, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """A prompt of random tokens for each request of the batch."""
    draw = np.random.default_rng(settings.seed)
    found = draw.integers(vocab_size, size=(settings.batch, settings.context))
    return tuple(tuple(row) for row in found.tolist())


def prompt_tokens(
    settings: EngineSettings, target: str | Path, context: int
) -> tuple[tuple[int, ...], ...]:
    """The prompts of the settings' files in the target's chat template.

    Raises:
        ValueError: a file cannot be read, or a prompt leaves no room in ``context`` tokens.
    """
    sets = load_sets(settings.prompts, limit=settings.limit, seed=settings.seed)
    tokenizer = load_tokenizer(target)
    found = []
    for one in sets:
        for prompt in one.prompts:
            ids = _encoded(tokenizer, prompt.text)
            if len(ids) >= context:
                raise ValueError(
                    f"prompt {prompt.name!r} of {one.name} has {len(ids)} tokens; the target's "
                    f"context of {context} leaves room for prompts of at most {context - 1}"
                )
            found.append(ids)
    return tuple(found)


def _encoded(tokenizer: Any, text: str) -> tuple[int, ...]:
    if not tokenizer.chat_template:
        return tuple(tokenizer.encode(text))
    message = [{"role": "user", "content": text}]
    whole = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    return tuple(tokenizer.encode(whole, add_special_tokens=False))
