"""bfloat16: trees and chains of the same width against plain rounds of the same engine.

A row of logits depends a little on how many rows share its pass, so near ties may turn. Trees may
do that no more often than chains, which verify as many rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Any

import torch

from jetflow_core.bench.engine.sides import ChosenBudget
from jetflow_core.bench.engine_lossless.gaps import LogitGaps
from jetflow_core.bench.engine_lossless.parting import parting
from jetflow_core.bench.engine_lossless.place import (
    Asked,
    Case,
    Models,
    Place,
    decoded,
    made_runner,
    scratch_of,
    used_by,
)
from jetflow_core.bench.engine_lossless.scripted import ChainOnly
from jetflow_core.limits import MAX_BUDGET
from jetflow_core.rounds import Finished, NoDraft, RoundDrafter
from jetflow_core.stacks import DecoderStack

_DEEPEST = 63
_UNLIKELY = 0.01


def rounding_cell(place: Place, batch: int) -> dict[str, Any]:
    """All pairs of trees and chains at one number of requests held at once.

    Args:
        place: what is loaded.
        batch: requests held at once.

    Returns:
        For each pair what either did beside plain rounds, and every first difference.
    """
    models = Models.load(place, torch.bfloat16)
    asked = [Asked(case=case, limit=place.settings.max_new_tokens) for case in place.cases]
    plain, _ = _answers(place, models, models.plain, NoDraft(), asked, rows=1, batch=batch)
    gaps = LogitGaps(place.target, torch.bfloat16, place.settings.device)
    # What the scripted ones know is what plain rounds of this very engine wrote.
    known = [
        Case(name=each.case.name, prompt=each.case.prompt, answer=tuple(one.tokens))
        for each, one in zip(asked, plain, strict=True)
    ]
    pairs: list[dict[str, Any]] = []
    used: dict[str, Any] = {}
    for name, tree, chain in _pairs(models, known):
        rows = min(tree.depth + 1, MAX_BUDGET)
        sides = {}
        for what, drafter in (("tree", tree), ("chain", chain)):
            found, used = _answers(
                place, models, models.stack, drafter, asked, rows=rows, batch=batch
            )  # fmt: skip
            sides[what] = _beside_plain(asked, plain, found, gaps)
        chance = chance_of_more(sides["tree"], sides["chain"])
        pairs.append(
            {
                "drafter": name, "rows": rows, **sides,
                "chance_if_equal": chance, "tree_more_frequent": chance < _UNLIKELY,
            }
        )  # fmt: skip
    return {"batch": batch, "answers": len(asked), "pairs": pairs, "used": used}


def chance_of_more(tree: dict[str, Any], chain: dict[str, Any]) -> float:
    """Chance of so many differences of trees or more, if both rates were equal.

    Given how many differences there are in all, those of trees are binomial by the tokens that
    either compared.
    """
    total = tree["different"] + chain["different"]
    tokens = tree["tokens_compared"] + chain["tokens_compared"]
    share = tree["tokens_compared"] / tokens if tokens else 0.5
    return sum(
        comb(total, count) * share**count * (1 - share) ** (total - count)
        for count in range(tree["different"], total + 1)
    )


def _pairs(models: Models, known: Sequence[Case]) -> list[tuple[str, RoundDrafter, RoundDrafter]]:
    """The head as a tree and as its own chain; a known text, hidden in a tree and as a chain."""
    deep = _DEEPEST
    return [
        ("head", models.drafter("head", known), ChainOnly(models.drafter("head", known))),
        (
            "known text",
            models.drafter("random", known, depth=deep),
            ChainOnly(models.drafter("oracle", known, depth=deep)),
        ),
    ]


def _answers(
    place: Place,
    models: Models,
    stack: DecoderStack,
    drafter: RoundDrafter,
    asked: Sequence[Asked],
    *,
    rows: int,
    batch: int,
) -> tuple[list[Finished], dict[str, Any]]:
    """Answers with room for everybody, and what ran them."""
    longest = stack.context_length + scratch_of(drafter, rows)
    pages = batch * (-(-longest // place.settings.page) + 1)
    runner = made_runner(
        stack, drafter, ChosenBudget(rows), place.settings, pages=pages, slots=batch
    )
    return decoded(runner, stack, asked), used_by(runner, models)


def _beside_plain(
    asked: Sequence[Asked], plain: Sequence[Finished], found: Sequence[Finished], gaps: LogitGaps
) -> dict[str, Any]:
    """How often answers leave the plain ones; behind a first difference nothing is compared."""
    listed, compared = [], 0
    for each, wanted, got in zip(asked, plain, found, strict=True):
        where = parting(each, wanted.tokens, got.tokens, gaps)
        compared += len(wanted.tokens) if where is None else where["position"] + 1
        if where is not None:
            listed.append(where)
    tokens, rounds = sum(len(each.tokens) for each in found), sum(each.rounds for each in found)
    return {
        "different": len(listed),
        "tokens_compared": compared,
        "per_thousand_tokens": 1000 * len(listed) / compared if compared else 0.0,
        "tau": tokens / rounds if rounds else 0.0,
        "largest_gap": max((abs(one["logit_gap"] or 0.0) for one in listed), default=None),
        "differences": listed,
    }
