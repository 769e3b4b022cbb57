"""The front door: what an engine remembers, refuses and says."""

import logging
from pathlib import Path

import pytest
import torch
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.fit import HeadMismatch
from jetflow_core.head.checkpoint import HeadInfo, LoadedHead
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from jetflow_tree import BestFirst

PROMPT = (3, 14, 15, 92, 65, 35)


def _head(target: Target, *, positions: int = 256, dtype: torch.dtype | None = None) -> LoadedHead:
    config = HeadConfig(
        hidden_size=target.hidden_size, intermediate_size=32, num_layers=1, num_heads=2,
        num_kv_heads=1, head_dim=8, vocab_size=target.vocab_size, block_size=6,
        num_target_layers=target.num_layers, target_layer_ids=target.taps, mask_token_id=7,
        max_position_embeddings=positions, candidates=8,
    )  # fmt: skip
    torch.manual_seed(0)
    head = DraftHead(config).to(dtype or target.dtype)
    return LoadedHead(head.eval().requires_grad_(False), HeadInfo(), Path("head"))


def _children(engine: Engine, options: TreeOptions) -> int:
    """Most children that any node of any round had."""
    found = engine.generate(PROMPT, SamplingParams(max_new_tokens=12), options)
    return max(
        max(each.tree.parents.tolist().count(row) for row in range(len(each.tree.parents)))
        for each in found.rounds
    )


def test_auto_grows_with_the_builder_of_each_request(tiny_target: Target) -> None:
    engine = Engine(tiny_target, _head(tiny_target))
    free = BestFirst()
    narrow = BestFirst(max_children=1)
    assert engine._planner(TreeOptions(builder=free), 1, engine._drafter(1, 64)) is not (
        engine._planner(TreeOptions(builder=narrow), 1, engine._drafter(1, 64))
    )
    assert _children(engine, TreeOptions(budget=8, builder=free)) > 1
    assert _children(engine, TreeOptions(budget="auto", builder=free)) >= 0
    assert _children(engine, TreeOptions(budget="auto", builder=narrow)) <= 1


def test_a_head_of_another_type_is_refused_before_any_pass(tiny_target: Target) -> None:
    other = torch.float32 if tiny_target.dtype == torch.float64 else torch.float64
    with pytest.raises(HeadMismatch, match=f"loaded as {other} on cpu; this target is"):
        Engine(tiny_target, _head(tiny_target, dtype=other))


def test_the_heads_reach_is_told_once(
    tiny_target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tiny_target, _head(tiny_target, positions=16))
    plain = Engine(tiny_target, None)
    options = TreeOptions(budget=8)
    with caplog.at_level(logging.WARNING):
        for length, told in ((10, 0), (11, 1), (20, 1)):
            params = SamplingParams(max_new_tokens=length)
            tokens = engine.generate(PROMPT, params, options).tokens
            assert tokens == plain.generate(PROMPT, params, TreeOptions(budget=1)).tokens
            said = [each for each in caplog.messages if "reaches 16 positions" in each]
            assert len(said) == told
