"""From walks to figures: pooled sums, never means of means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jetflow_core.bench.summary import bootstrap
from jetflow_core.reports.loops import loop_share, tau_without_loops
from jetflow_core.reports.prompt_lookup import prompt_lookup_rounds
from jetflow_core.reports.tau import MAX_DRAFT, NGRAM
from jetflow_tree.stats import AcceptanceStats

from jetflow_train.evaluation.answers import Answers
from jetflow_train.evaluation.offline import Evaluation, Walked

_RESAMPLES = 2000
RATIO_INTERVAL = (
    f"tau / tau of the first head with the same policy on the same texts; 95 % paired bootstrap "
    f"interval: {_RESAMPLES} draws of the prompts with replacement, the same for both heads, "
    "tokens and rounds pooled in each"
)


def set_figures(answers: Answers) -> dict[str, Any]:
    """What is told of the texts themselves."""
    texts = [text.answer for text in answers.texts]
    copied = sum(
        prompt_lookup_rounds(
            text.tokens[: text.prompt_len].tolist(), answer, ngram=NGRAM, max_draft=MAX_DRAFT
        )
        for text, answer in zip(answers.texts, texts, strict=True)
    )
    return {
        "temperature": answers.temperature,
        "answers": len(texts),
        "tokens": answers.tokens,
        "cut_by_length": answers.cut,
        "loop_share": loop_share(texts),
        "prompt_lookup": {
            "tau": answers.tokens / copied if copied else 0.0,
            "rounds": copied,
            "ngram": NGRAM,
            "max_draft": MAX_DRAFT,
        },
        "answers_sha256": answers.sha256(),
    }


def head_figures(
    name: str, found: Evaluation, answers: Answers, first: Mapping[str, Walked] | None
) -> list[dict[str, Any]]:
    """One row a policy of a head.

    Args:
        name: of the head.
        found: its walks over ``answers``.
        answers: the texts.
        first: the first head's walks by policy; None for that head itself.
    """
    rows = []
    for walked in found.walked:
        beside = first.get(walked.policy.name) if first is not None else None
        rows.append(
            {"head": name, **walked_figures(walked, answers)}
            | {"ratio_to_first": None if beside is None else _ratio(walked, beside)}
        )
    return rows


def walked_figures(walked: Walked, answers: Answers) -> dict[str, Any]:
    """What one policy does on ``answers``, ready for JSON."""
    sizes = [walk.sizes for walk in walked.walks]
    stats = AcceptanceStats()
    for walk in walked.walks:
        stats.merge(walk.stats)
    texts = [text.answer for text in answers.texts]
    return {
        "candidates": walked.candidates,
        "policy": walked.policy.name,
        "kind": walked.policy.kind,
        "budget": walked.policy.budget,
        "head_slots": walked.head_slots,
        "tokens": walked.tokens,
        "rounds": walked.rounds,
        "tau": walked.tau,
        "tau_interval": bootstrap([sum(some) for some in sizes], [len(some) for some in sizes]),
        "tau_without_loops": tau_without_loops(zip(texts, sizes, strict=True)),
        "rows_per_round": stats.rows / max(1, stats.rounds),
        "expected_length": stats.expected / max(1, stats.rounds),
        "accepted_by_depth": [
            {"depth": depth, "reached": tally.offered, "accepted": tally.kept,
             "share": tally.kept / max(1, tally.offered)}
            for depth, tally in enumerate(stats.by_depth, start=1)
        ],
        "accepted_by_rank": _by_rank(walked, stats.accepted),
    }  # fmt: skip


def _by_rank(walked: Walked, accepted: int) -> list[dict[str, Any]]:
    width = max((len(walk.by_candidate) for walk in walked.walks), default=0)
    counts = np.zeros(width, dtype=np.int64)
    for walk in walked.walks:
        counts[: len(walk.by_candidate)] += np.asarray(walk.by_candidate, dtype=np.int64)
    return [
        {"rank": rank, "accepted": int(count), "share": int(count) / max(1, accepted)}
        for rank, count in enumerate(counts, start=1)
    ]


def _ratio(mine: Walked, first: Walked) -> dict[str, Any]:
    return {
        "ratio": mine.tau / first.tau if first.tau else 0.0,
        "interval": ratio_interval(_rounds(mine), _rounds(first)),
    }


def _rounds(walked: Walked) -> list[int]:
    return [len(walk.sizes) for walk in walked.walks]


def ratio_interval(rounds: Sequence[int], first: Sequence[int], seed: int = 0) -> list[float]:
    """Lower and upper end of the interval of ``sum(first) / sum(rounds)``; see ``RATIO_INTERVAL``.

    The tokens of both heads are the same, so they cancel.

    Args:
        rounds: of each prompt.
        first: those of the first head, in the same order.
        seed: of the draws.

    Raises:
        ValueError: not as many prompts on both sides, or none.
    """
    if len(rounds) != len(first) or not rounds:
        raise ValueError(f"{len(rounds)} and {len(first)} prompts: pairs are needed, at least one")
    drawn = np.random.default_rng(seed).integers(len(rounds), size=(_RESAMPLES, len(rounds)))
    mine, theirs = np.asarray(rounds)[drawn].sum(axis=1), np.asarray(first)[drawn].sum(axis=1)
    return [float(end) for end in np.quantile(theirs / mine, (0.025, 0.975))]


def top1_figures(name: str, found: Evaluation) -> list[dict[str, Any]]:
    """Top-1 by depth of a head, for each kind of its candidates."""
    return [
        {
            "head": name,
            "candidates": candidates,
            "by_depth": [
                {"depth": depth, "right": int(right), "places": int(places), "share": share}
                for depth, (right, places, share) in enumerate(
                    zip(top1.right, top1.places, top1.shares, strict=True), start=1
                )
            ],
        }
        for candidates, top1 in found.top1.items()
    ]
