"""What a finished run says of its head: greedy tau of each held-out set, for its provenance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jetflow_core.head.model import DraftHead
from jetflow_core.reports.loops import loop_share, tau_without_loops

from jetflow_train.answering import told_backend
from jetflow_train.evaluation.answers import Answers, answer_prompts
from jetflow_train.evaluation.offline import Evaluation, evaluate
from jetflow_train.evaluation.policies import BASE, CHAIN, OWN, exact_policies
from jetflow_train.evaluation.sets import EvalSets
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.target import FrozenTarget

Report = Callable[[str], None]

BUDGETS = (16, 64, 256)


def evaluate_sets(
    target: FrozenTarget,
    head: DraftHead,
    eval_sets: EvalSets,
    report: Report,
    walkers: Walkers | None = None,
) -> dict[str, dict[str, Any]]:
    """Greedy figures of each set by name, ready for JSON; answers of at most 128 new tokens.

    ``path`` holds those of a head with a path term, ``marginal`` those without it; tau is by
    policy: ``chain``, and a tree by its budget. ``walkers`` walk; None: this process.
    """
    results: dict[str, dict[str, Any]] = {}
    exact = exact_policies(BUDGETS, head.config.max_depth)
    policies = {OWN: exact} | ({BASE: exact} if head.path is not None else {})
    backend = told_backend(target, report) if eval_sets else None
    for name, prompts in eval_sets.items():
        answers = answer_prompts(target, prompts, backend=backend)
        began = time.monotonic()
        found = evaluate(target, head, answers, policies, walkers)
        results[name] = {
            "prompts": len(answers.texts),
            "tokens": answers.tokens,
            "loop_share": loop_share(text.answer for text in answers.texts),
        }
        for candidates in policies:
            key = "path" if candidates == OWN and head.path is not None else "marginal"
            results[name][key] = _figures(found, candidates, answers)
            taus = " ".join(f"{n} {tau:.3f}" for n, tau in results[name][key]["tau"].items())
            report(f"{name} {key}: {taus}")
        report(f"{name}: walked in {time.monotonic() - began:.1f} s")
    return results


def _figures(found: Evaluation, candidates: str, answers: Answers) -> dict[str, Any]:
    named = {
        CHAIN if each.policy.kind == CHAIN else str(each.policy.budget): each
        for each in found.of(candidates).values()
    }
    texts = [text.answer for text in answers.texts]
    top1 = found.top1[candidates]
    return {
        "tau": {name: each.tau for name, each in named.items()},
        "tau_without_loops": {
            name: tau_without_loops(zip(texts, (w.sizes for w in each.walks), strict=True))
            for name, each in named.items()
        },
        "walks": {
            name: {"tokens": each.tokens, "rounds": each.rounds} for name, each in named.items()
        },
        "top1_by_depth": list(top1.shares),
        "top1_right": top1.right.tolist(),
        "top1_places": top1.places.tolist(),
    }


def pooled_top1(results: Mapping[str, Mapping[str, Any]]) -> tuple[float, ...]:
    """Top-1 by depth over all places of all sets of ``evaluate_sets``; () without any."""
    rows = [found.get("path", found.get("marginal")) for found in results.values()]
    if not rows:
        return ()
    right = np.sum([row["top1_right"] for row in rows], axis=0)
    places = np.sum([row["top1_places"] for row in rows], axis=0)
    return tuple(round(float(r) / max(1, int(n)), 4) for r, n in zip(right, places, strict=True))
