"""Decoding with a real head on a tiny target: whatever the head is like, the text is plain's."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jetflow_core.engine as engine_module
import numpy as np
import pytest
from jetflow_core.drafters.probe import oracle, random_tree
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.head.checkpoint import LoadedHead
from jetflow_core.planning.costs import StepCosts
from jetflow_core.planning.measure import MeasuredCosts
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target

VOCAB = 128
Heads = Callable[..., LoadedHead]


def _prompts(*lengths: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(0)
    return [tuple(rng.integers(0, VOCAB, length).tolist()) for length in lengths]


def _compared(
    engine: Engine, prompts: Sequence[tuple[int, ...]], options: TreeOptions, count: int
) -> list[Generation]:
    """Answers with trees, which are plain decoding's."""
    params = SamplingParams(max_new_tokens=count)
    plain = engine.generate_batch(prompts, params, TreeOptions(budget=1), num_slots=4)
    found = engine.generate_batch(prompts, params, options, num_slots=4)
    assert [each.tokens for each in found] == [each.tokens for each in plain]
    assert all(len(each.tokens) == count for each in found)
    return found


@pytest.mark.parametrize("budget", [16, "auto"])
def test_a_text_longer_than_the_heads_positions_goes_on(
    tiny_target: Target, head_for_tiny_target: Heads, budget: int | Literal["auto"]
) -> None:
    """The head ends at 64 positions: one prompt crosses them, one begins beyond."""
    engine = Engine(tiny_target, head_for_tiny_target(max_position_embeddings=64))
    crossing, beyond = _compared(engine, _prompts(60, 100), TreeOptions(budget=budget), 40)
    offered = [each.drafted_depths for each in crossing.rounds]
    assert max(offered) in (3, 4), "positions 60 to 63 hold a short draft"
    # Once the text has passed the head's end nothing is drafted any more.
    assert not any(offered[-20:])
    assert not any(each.drafted_depths for each in beyond.rounds)


@pytest.mark.parametrize("path_rank", [0, 4])
def test_more_candidates_than_the_vocabulary_are_all_of_it(
    tiny_target: Target, head_for_tiny_target: Heads, path_rank: int
) -> None:
    head = head_for_tiny_target(candidates=500, path_rank=path_rank)
    found = _compared(Engine(tiny_target, head), _prompts(3, 9), TreeOptions(budget=200), 12)
    kept = [row for each in found for round_ in each.rounds for row in round_.accepted.nodes]
    assert kept, "with the whole vocabulary on offer something is right"
    widest = found[0].rounds[0].tree.children(0)
    assert 16 < len(widest) <= VOCAB


@pytest.mark.parametrize("changes", [{"block_size": 2}, {"block_size": 1, "draft_shift": True}])
def test_a_head_of_one_depth_drafts_leaves(
    tiny_target: Target, head_for_tiny_target: Heads, changes: dict[str, Any]
) -> None:
    engine = Engine(tiny_target, head_for_tiny_target(**changes))
    assert engine.max_depth == 1
    found = _compared(engine, _prompts(3, 9), TreeOptions(budget=5), 12)
    _assert_leaves(found)


def test_trees_of_one_depth_are_the_root_and_its_leaves(
    tiny_target: Target, head_for_tiny_target: Heads
) -> None:
    engine = Engine(tiny_target, head_for_tiny_target())
    _assert_leaves(_compared(engine, _prompts(3, 9), TreeOptions(depth=1, budget=5), 12))


def _assert_leaves(found: list[Generation]) -> None:
    for each in found:
        parents = [round_.tree.parents.tolist() for round_ in each.rounds]
        assert parents[0] == [-1, 0, 0, 0, 0]
        assert {round_.drafted_depths for round_ in each.rounds[:-1]} == {1}
        # The last token needs no draft.
        assert all(rows in ([-1, 0, 0, 0, 0], [-1]) for rows in parents)


def test_auto_shares_its_passes_among_requests(
    tiny_target: Target, head_for_tiny_target: Heads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests than slots, with a head and with probes, at costs that favour trees."""
    draft, verify = StepCosts([1, 7], [0.01, 0.02]), StepCosts([1, 128], [1.0, 1.2])
    costs = MeasuredCosts(draft, verify, 0.1)
    monkeypatch.setattr(engine_module, "measured_costs", lambda *_, **__: costs)
    engine, prompts = Engine(tiny_target, head_for_tiny_target()), _prompts(3, 17, 1, 30, 8, 5)
    found = _compared(engine, prompts, TreeOptions(), 24)
    answers = {each.prompt: each.tokens for each in found}
    for make in (oracle, random_tree):
        probed = engine.generate_batch(
            prompts, SamplingParams(max_new_tokens=24), TreeOptions(), num_slots=4,
            drafter=make(answers, VOCAB, depth=7),
        )  # fmt: skip
        assert {each.prompt: each.tokens for each in probed} == answers
        first = [each.rounds[0].tree.num_nodes for each in probed[:4]]
        assert min(first) > 4, "each of the four requests of the first pass has a tree"
