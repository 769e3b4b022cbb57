"""Offline tau: walk stored greedy answers with the head's trees.

For a greedy target the longest tree path that equals the stored continuation is what verification
would accept, so no target call is needed beyond the features. This is the quick check of a
training run; decode rounds with the real engine are the figure to publish.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from numpy.typing import NDArray

from jetflow_train.evaluation.answers import greedy_answers
from jetflow_train.evaluation.drafts import draft_everywhere
from jetflow_train.evaluation.sets import EvalSets
from jetflow_train.evaluation.walk import Walked, policies, walk_answer
from jetflow_train.shards import Corpus
from jetflow_train.target import FrozenTarget

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Walks by tree policy, and how often each depth's best token was the stored one."""

    walks: Mapping[str, Walked]
    top1_by_depth: tuple[float, ...]

    def line(self) -> str:
        """One line of text: tau of each policy."""
        return " ".join(f"{name} {walked.tau:.3f}" for name, walked in self.walks.items())


@torch.no_grad()
def evaluate(
    target: FrozenTarget,
    head: DraftHead,
    corpus: Corpus,
    *,
    budgets: Sequence[int] = (16, 64, 256),
    use_path: bool = True,
) -> Evaluation:
    """Tau of the head on stored greedy answers.

    Args:
        target: the target that wrote the answers.
        head: the head, on the target's device.
        corpus: held-out sequences; sampled answers are refused.
        budgets: rows of a tree, the root included.
        use_path: False leaves the path term out, as a comparison.

    Raises:
        ValueError: an answer was sampled: the walk would not be what verification accepts.
    """
    if (corpus.temperature != 0).any():
        raise ValueError("the walk needs greedy answers, the corpus holds sampled ones")
    builders = policies(budgets)
    counts = {name: np.zeros(2, dtype=np.int64) for name in builders}
    hits = np.zeros((2, head.config.max_depth), dtype=np.int64)
    embedding = target.embedding.to(next(head.parameters()).dtype)
    for index in range(len(corpus)):
        tokens = corpus.sequence(index).astype(np.int64)
        first = int(corpus.prompt_len[index]) - 1
        if len(tokens) - first < 2:
            continue
        drafts, best = draft_everywhere(target, head, embedding, tokens, first, use_path=use_path)
        _count_hits(hits, best, tokens, first)
        for name, (builder, budget) in builders.items():
            counts[name] += walk_answer(tokens, first, drafts, builder, budget)
    walks = {name: Walked(tokens=int(c[0]), rounds=int(c[1])) for name, c in counts.items()}
    top1 = tuple(float(h) / max(1, int(n)) for h, n in zip(*hits, strict=True))
    return Evaluation(walks=walks, top1_by_depth=top1)


def evaluate_sets(
    target: FrozenTarget,
    head: DraftHead,
    eval_sets: EvalSets,
    report: Report,
) -> dict[str, dict[str, Any]]:
    """Answer each set greedily (at most 128 new tokens, loops cut) and walk the answers."""
    results: dict[str, dict[str, Any]] = {}
    for name, prompts in eval_sets.items():
        corpus = greedy_answers(target, prompts)
        found: dict[str, Any] = {"prompts": len(corpus), "tokens": len(corpus.tokens)}
        kinds = (True, False) if head.path is not None else (False,)
        for use_path in kinds:
            began = time.monotonic()
            result = evaluate(target, head, corpus, use_path=use_path)
            key = "path" if use_path else "marginal"
            found[key] = _as_dict(result)
            report(f"{name} {key}: {result.line()} ({time.monotonic() - began:.1f} s)")
        results[name] = found
    return results


def pooled_top1(results: Mapping[str, dict[str, Any]]) -> tuple[float, ...]:
    """Top-1 by depth, the mean over the sets of ``evaluate_sets``."""
    rows = [found.get("path", found["marginal"])["top1_by_depth"] for found in results.values()]
    return tuple(round(sum(column) / len(column), 4) for column in zip(*rows, strict=True))


def _as_dict(result: Evaluation) -> dict[str, Any]:
    return {
        "tau": {name: walked.tau for name, walked in result.walks.items()},
        "walks": {name: asdict(walked) for name, walked in result.walks.items()},
        "top1_by_depth": list(result.top1_by_depth),
    }


def _count_hits(
    hits: NDArray[np.int64], best: NDArray[np.int64], tokens: NDArray[np.int64], first: int
) -> None:
    for depth in range(1, min(best.shape[1], len(tokens) - 1 - first) + 1):
        stored = tokens[first + depth :]
        hits[0, depth - 1] += int((best[: len(stored), depth - 1] == stored).sum())
        hits[1, depth - 1] += len(stored)
