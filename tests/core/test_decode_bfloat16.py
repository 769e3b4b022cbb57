"""In 16-bit types rounding may move a near tie, and nothing else; no more often than a chain's.

A row's rounding depends on how many rows share its pass, for chains as for trees.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_core.drafters.probe import always_wrong, oracle, random_tree
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.lossless import explain_difference
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from jetflow_tree import BestFirst, Chain, TreeBuilder

VOCAB, DEPTH, COUNT = 128, 15, 24
PARAMS = SamplingParams(max_new_tokens=COUNT)
MAKERS = (oracle, always_wrong, random_tree)


@pytest.fixture(scope="module")
def engine(tiny_model: Callable[..., Any]) -> Engine:
    return Engine(Target.from_model(tiny_model("qwen3", dtype=torch.bfloat16)), None)


@pytest.fixture(scope="module")
def plain(engine: Engine) -> list[Generation]:
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, VOCAB, (12, 6), generator=generator).tolist()
    return engine.generate_batch(prompts, PARAMS, TreeOptions(budget=1), num_slots=1)


def _differing(engine: Engine, plain: list[Generation], builder: TreeBuilder) -> int:
    """Runs that part from the plain text, after a look at where each does."""
    answers = {each.prompt: each.tokens for each in plain}
    count = 0
    for make in MAKERS:
        found = engine.generate_batch(
            list(answers), PARAMS, TreeOptions(budget=DEPTH + 1, builder=builder), num_slots=1,
            drafter=make(answers, VOCAB, depth=DEPTH),
        )  # fmt: skip
        for one, other in zip(plain, found, strict=True):
            parting = explain_difference(engine, one.prompt, PARAMS, one.tokens, other.tokens)
            if parting is not None:
                count += 1
                assert parting.is_near_tie, parting
    return count


@pytest.mark.slow
def test_trees_part_from_plain_text_at_near_ties_alone_and_as_seldom_as_chains(
    engine: Engine, plain: list[Generation]
) -> None:
    chain = _differing(engine, plain, Chain())
    tree = _differing(engine, plain, BestFirst())
    assert tree <= chain + 4
