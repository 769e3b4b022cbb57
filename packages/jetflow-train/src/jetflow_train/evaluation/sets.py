"""Held-out prompts as token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jetflow_core.loading import load_config
from numpy.typing import NDArray

from jetflow_train.evaluation.answers import MAX_NEW_TOKENS
from jetflow_train.prompts import load_prompts, read_prompts
from jetflow_train.target import positions

EvalSets = Mapping[str, Sequence[NDArray[np.int64]]]
"""Token ids of prompts by the name of their set."""

LONGEST_PROMPT = 1024


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeldOut:
    """The prompts of one set."""

    name: str
    prompts: Sequence[NDArray[np.int64]]
    too_long: int
    """Prompts left out."""
    provenance: Mapping[str, Any]


def held_out_sets(
    target_dir: Path,
    eval_sets: Mapping[str, Sequence[Path]],
    limit: int,
    longest: int = LONGEST_PROMPT,
    thinking: bool | None = None,
) -> list[HeldOut]:
    """The prompts of each set, the first ``limit`` of a file, without those above ``longest``.

    ``thinking``: as in ``load_prompts``.

    Raises:
        ValueError: a file cannot be read, or a set holds no prompt that is short enough.
    """
    found = []
    for name, files in eval_sets.items():
        loaded = load_prompts(target_dir, files, limit, thinking)
        kept = [tokens for tokens in loaded.tokens if len(tokens) <= longest]
        if not kept:
            raise ValueError(
                f"no prompt of at most {longest} tokens in {', '.join(map(str, files))}"
            )
        skipped = len(loaded.tokens) - len(kept)
        found.append(
            HeldOut(name=name, prompts=kept, too_long=skipped, provenance=loaded.provenance)
        )
    return found


def longest_prompt(positions: int, max_new_tokens: int) -> int:
    """Most tokens of a held-out prompt whose answer must fit into ``positions``, too.

    Raises:
        ValueError: there is no room for a prompt of one token.
    """
    room = positions - max_new_tokens
    if room < 1:
        raise ValueError(
            f"max_new_tokens {max_new_tokens} is out of range: the target has {positions} "
            f"positions, so at most {positions - 1}"
        )
    return min(LONGEST_PROMPT, room)


def load_eval_sets(
    target_dir: Path,
    eval_sets: Mapping[str, Sequence[Path]],
    limit: int,
    thinking: bool | None = None,
) -> EvalSets:
    """Token ids of the prompts of each set whose answers fit into the target's positions.

    ``thinking``: as in ``load_prompts``.

    Raises:
        ValueError: see ``held_out_sets`` and ``longest_prompt``.
    """
    if not eval_sets:
        return {}
    for files in eval_sets.values():
        # A bad file is told before anything of the target is looked for.
        read_prompts(files, limit)
    longest = longest_prompt(positions(load_config(target_dir)), MAX_NEW_TOKENS)
    found = held_out_sets(target_dir, eval_sets, limit, longest, thinking)
    return {one.name: one.prompts for one in found}
