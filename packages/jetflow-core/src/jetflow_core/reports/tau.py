"""Tau with what keeps it honest: formula, loops, and what copying alone would reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jetflow_core.reports.loops import LOOP_DEFINITION, loop_share, tau_without_loops
from jetflow_core.reports.prompt_lookup import prompt_lookup_rounds

TAU_FORMULA = (
    "tau = new tokens / rounds; a round is one draft and one target pass, and gives its accepted "
    "tokens and one more of the target; tokens after a stop are not counted"
)
NGRAM, MAX_DRAFT = 3, 10


@dataclass(frozen=True, slots=True)
class WrittenText:
    """A finished text, with how many tokens each round gave."""

    prompt: Sequence[int]
    tokens: Sequence[int]
    round_sizes: Sequence[int]


def tau_figures(texts: Sequence[WrittenText]) -> dict[str, Any]:
    """The figures that every report of tau carries, over all ``texts``, ready for JSON."""
    tokens = sum(len(text.tokens) for text in texts)
    rounds = sum(len(text.round_sizes) for text in texts)
    copied = sum(
        prompt_lookup_rounds(text.prompt, text.tokens, ngram=NGRAM, max_draft=MAX_DRAFT)
        for text in texts
    )
    return {
        "tau": tokens / rounds if rounds else 0.0,
        "formula": TAU_FORMULA,
        "tokens": tokens,
        "rounds": rounds,
        "tau_without_loops": tau_without_loops((t.tokens, t.round_sizes) for t in texts),
        "loop_share": loop_share(text.tokens for text in texts),
        "loop_definition": LOOP_DEFINITION,
        "prompt_lookup": {
            "tau": tokens / copied if copied else 0.0,
            "ngram": NGRAM,
            "max_draft": MAX_DRAFT,
        },
    }
