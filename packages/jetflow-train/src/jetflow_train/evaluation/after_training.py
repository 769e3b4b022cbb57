"""What a finished run says of its head on each held-out set, greedy and sampled."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jetflow_core.head.model import DraftHead

from jetflow_train.answering import told_backend
from jetflow_train.evaluation.answers import Answers, answer_prompts
from jetflow_train.evaluation.figures import set_figures, walked_figures
from jetflow_train.evaluation.offline import Evaluation, evaluate
from jetflow_train.evaluation.policies import BASE, CHAIN, OWN, exact_policies
from jetflow_train.evaluation.sets import EvalSets
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.target import FrozenTarget
from jetflow_train.temperatures import answers_name, with_greedy

Report = Callable[[str], None]

BUDGETS = (16, 64, 256)


def evaluate_sets(
    target: FrozenTarget,
    head: DraftHead,
    eval_sets: EvalSets,
    report: Report,
    walkers: Walkers | None = None,
    temperatures: Sequence[float] = (0.0,),
) -> dict[str, dict[str, Any]]:
    """Figures of each set by name, ready for JSON; answers of at most 128 new tokens.

    ``path`` holds those of a head with a path term, ``marginal`` those without it, all by policy:
    ``chain``, and a tree by its budget. ``walkers`` walk; None: this process. Greedy answers are
    always among them, under the set's own name; those sampled at one of ``temperatures`` stand
    under a name such as ``math at 0.7``.
    """
    results: dict[str, dict[str, Any]] = {}
    exact = exact_policies(BUDGETS, head.config.max_depth)
    policies = {OWN: exact} | ({BASE: exact} if head.path is not None else {})
    backend = told_backend(target, report) if eval_sets else None
    asked = [(name, each) for name in eval_sets for each in with_greedy(temperatures)]
    for prompts, temperature in asked:
        answers = answer_prompts(
            target, eval_sets[prompts], temperature=temperature, backend=backend
        )
        name, began = answers_name(prompts, temperature), time.monotonic()
        found = evaluate(target, head, answers, policies, walkers)
        results[name] = {"prompts": len(answers.texts), **set_figures(answers)}
        for candidates in policies:
            key = "path" if candidates == OWN and head.path is not None else "marginal"
            results[name][key] = _figures(found, candidates, answers)
            taus = " ".join(f"{n} {tau:.3f}" for n, tau in results[name][key]["tau"].items())
            report(f"{name} {key}: {taus}")
        copied = results[name]["prompt_lookup"]["tau"]
        report(f"{name} prompt lookup: {copied:.3f}; walked in {time.monotonic() - began:.1f} s")
    return results


def _figures(found: Evaluation, candidates: str, answers: Answers) -> dict[str, Any]:
    named = {
        CHAIN if each.policy.kind == CHAIN else str(each.policy.budget): walked_figures(
            each, answers
        )
        for each in found.of(candidates).values()
    }
    top1 = found.top1[candidates]
    return {
        "tau": {name: row["tau"] for name, row in named.items()},
        "tau_without_loops": {name: row["tau_without_loops"] for name, row in named.items()},
        "walks": {
            name: {"tokens": row["tokens"], "rounds": row["rounds"]} for name, row in named.items()
        },
        # Counts alone, from depth and rank 1 on: all of it is stored with the head.
        "accepted_by_depth": {
            name: {
                kind: [each[kind] for each in row["accepted_by_depth"]]
                for kind in ("reached", "accepted")
            }
            for name, row in named.items()
        },
        "accepted_by_rank": {
            name: [each["accepted"] for each in row["accepted_by_rank"]]
            for name, row in named.items()
        },
        "top1_by_depth": list(top1.shares),
        "top1_right": top1.right.tolist(),
        "top1_places": top1.places.tolist(),
    }


def pooled_top1(results: Mapping[str, Mapping[str, Any]]) -> tuple[float, ...]:
    """Top-1 by depth over all greedy places of ``evaluate_sets``; () without any."""
    greedy = [found for found in results.values() if found["temperature"] == 0]
    rows = [found.get("path", found.get("marginal")) for found in greedy]
    if not rows:
        return ()
    right = np.sum([row["top1_right"] for row in rows], axis=0)
    places = np.sum([row["top1_places"] for row in rows], axis=0)
    return tuple(round(float(r) / max(1, int(n)), 4) for r, n in zip(right, places, strict=True))
