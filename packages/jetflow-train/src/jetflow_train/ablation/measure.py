"""One trained head over the stored answers: tokens and rounds of each prompt."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jetflow_core.head.checkpoint import load_head
from jetflow_core.head.model import DraftHead
from jetflow_tree import AllChildren, BestFirst, Chain, TreeBuilder

from jetflow_train.ablation.plan import BUILDERS
from jetflow_train.ablation.stored_answers import AnsweredSet
from jetflow_train.evaluation.offline import evaluate
from jetflow_train.evaluation.policies import ALL_CHILDREN, CHAIN, OWN, SECOND_PASS, TREE, Policy
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.files import write_json
from jetflow_train.heads import weights_sha256
from jetflow_train.target import FrozenTarget

FORMAT = "jetflow-walks/1"


def policies(builders: Sequence[str], budgets: Sequence[int]) -> list[tuple[str, Policy]]:
    """Every builder at every budget, with the builder's name in plans.

    A chain ends with its head's depth, so that large budgets leave it as it is.
    """
    return [
        (name, Policy(kind=kind, budget=budget, builder=builder))
        for name, kind, builder in _known()
        if name in builders
        for budget in sorted(budgets)
    ]


def _known() -> list[tuple[str, str, TreeBuilder]]:
    kinds = (TREE, ALL_CHILDREN, CHAIN, SECOND_PASS)
    grown: tuple[TreeBuilder, ...] = (BestFirst(), AllChildren(), Chain(), BestFirst())
    return list(zip(BUILDERS, kinds, grown, strict=True))


def measure(
    target: FrozenTarget,
    head_dir: Path,
    answered: Sequence[AnsweredSet],
    grown: Sequence[tuple[str, Policy]],
    walkers: Walkers,
    out: Path,
    over: Callable[[], bool] = lambda: False,
) -> dict[str, Any] | None:
    """Walks the head in ``head_dir`` over the answers; what it did is stored and comes back.

    What is stored already for these very weights, answers and policies is not walked again. A
    second pass takes minutes, so every set's walks are kept as soon as they are there.

    Args:
        target: that wrote the answers.
        head_dir: folder of the head.
        answered: the stored answers.
        grown: from ``policies``.
        walkers: processes that walk.
        out: file for the result.
        over: asked before each set; True: what is walked is kept, and the next call goes on.

    Returns:
        None where time ended before the last set.
    """
    marks = {
        "format": FORMAT,
        "weights_sha256": weights_sha256(head_dir),
        "answers_sha256": {each.key: each.answers.sha256() for each in answered},
        "policies": [[name, policy.budget] for name, policy in grown],
    }
    before = stored_walks(out)
    if before is not None and _same(before, marks):
        return before
    head = load_head(head_dir).head.to(device=target.device, dtype=target.dtype)
    begun = out.with_suffix(".begun.json")
    rows = _rows_of(begun, marks)
    for each in answered[len(rows) // len(grown) :]:
        if over():
            return None
        rows += _walked(target, head, each, grown, walkers)
        write_json(begun, {**marks, "rows": rows})
    parameters = sum(parameter.numel() for parameter in head.parameters())
    result = {**marks, "parameters": parameters, "rows": rows}
    write_json(out, result)
    begun.unlink(missing_ok=True)
    return result


def _walked(
    target: FrozenTarget,
    head: DraftHead,
    answered: AnsweredSet,
    grown: Sequence[tuple[str, Policy]],
    walkers: Walkers,
) -> list[dict[str, Any]]:
    """One set at one temperature: a row for each of ``grown``."""
    found = evaluate(
        target, head, answered.answers, {OWN: [policy for _, policy in grown]}, walkers
    )
    return [
        {
            "set": answered.name,
            "temperature": answered.answers.temperature,
            "builder": name,
            "budget": policy.budget,
            "head_slots": walked.head_slots,
            "tau": walked.tau,
            "tokens": [sum(walk.sizes) for walk in walked.walks],
            "rounds": [len(walk.sizes) for walk in walked.walks],
        }
        for (name, policy), walked in zip(grown, found.walked, strict=True)
    ]


def _rows_of(begun: Path, marks: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What an interrupted call has walked of the same, set after set."""
    before = stored_walks(begun)
    return before["rows"] if before is not None and _same(before, marks) else []


def _same(stored: Mapping[str, Any], marks: Mapping[str, Any]) -> bool:
    return all(stored.get(name) == mark for name, mark in marks.items())


def stored_walks(file: Path) -> dict[str, Any] | None:
    """What ``measure`` stored; None where it has not."""
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
