"""Whom to draft for after a step, and what grows, without vLLM."""

from dataclasses import replace

import numpy as np
from jetflow_core.head.config import HeadConfig
from jetflow_serve.drafts import Drafts, Picked
from jetflow_serve.options import ServeOptions
from jetflow_serve.reasons import Choice, Shape
from jetflow_serve.stage import Staged
from jetflow_tree import Accepted, Candidates

HEAD = HeadConfig(
    hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
    vocab_size=50, block_size=6, num_target_layers=4, target_layer_ids=(3,), mask_token_id=1,
    candidates=3,
)  # fmt: skip
TREE = Picked("tree", 0, 7, 20, Choice(Shape.TREE), 0.0)
CHAIN = Picked("chain", 1, 8, 30, Choice(Shape.CHAIN, "penalties"), 1.0)
OFF = Picked("off", 2, 9, 40, Choice(Shape.PLAIN, "off"), 0.0)
SMALL = Picked("small", 3, 6, 50, Choice(Shape.TREE, budget=3), 0.0)
LATE = Picked("late", 4, 6, 63, Choice(Shape.TREE), 0.0)
ALL = [TREE, CHAIN, OFF, SMALL, LATE]
TABLE = np.log(np.array([[0.5, 0.3, 0.1]] * 5))
FOUND = Candidates.marginal(np.array([[1, 2, 3]] * 5), TABLE)


def test_whom_to_draft_for_and_how_far() -> None:
    drafts = Drafts(HEAD, ServeOptions(depth=4), 64)
    asks = drafts.plan(ALL, 9)
    assert [(ask.request, ask.depth, ask.nodes) for ask in asks] == [
        ("tree", 4, 9),
        ("chain", 4, 9),
        ("small", 2, 2),
    ]
    assert drafts.counters.plain == 5
    grown = drafts.grow(asks, [FOUND.truncate(ask.depth) for ask in asks])
    assert list(map(len, grown)) == [9, 4, 2]
    assert set(drafts.trees) == {"tree", "chain", "small"}
    assert drafts.counters.batch == (5, 5 + 15)
    assert drafts.counters.to_dict()["reasons"] == {"penalties": 1, "off": 1}
    drafts.forget("tree")
    assert set(drafts.trees) == {"chain", "small"}


def test_who_was_verified_is_not_plain() -> None:
    drafts = Drafts(HEAD, ServeOptions(), 64)
    asks = drafts.plan([TREE, OFF], 4)
    (tokens,) = drafts.grow(asks, [FOUND])
    entry = Staged("tree", 0, 20, drafts.trees["tree"])
    assert tokens == entry.tree.tokens[1:].tolist()
    drafts.verified(entry, Accepted((1,), (1,), 5), 0)
    drafts.plan([replace(TREE, place=22), OFF], 4)
    counted = drafts.counters
    assert (counted.rounds, counted.plain, counted.accepted) == (1, 3, 1)
