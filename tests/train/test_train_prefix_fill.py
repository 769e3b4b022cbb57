"""Prefix-filled blocks: drawn without state, weighed behind their tokens, equal to the drafting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.head.bridge import last_rows
from jetflow_core.head.model import DraftHead
from jetflow_core.head.second_pass import PaddedTrees, second_pass
from jetflow_train.blocks import block_ropes, run_blocks
from jetflow_train.feed import Feed
from jetflow_train.initialise import head_config, new_head
from jetflow_train.objectives import Objective
from jetflow_train.packing import Batch, build_batch, depth_weights, draw_fills
from jetflow_train.schedule import Horizon
from jetflow_train.shards import Corpus
from jetflow_train.sight import document_mask
from jetflow_train.step import StepFunctions, StepLosses
from jetflow_train.target import FrozenTarget, from_model
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer
from jetflow_tree import Tree

CPU = torch.device("cpu")
DEPTH = 4


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Any]) -> FrozenTarget:
    return from_model(tiny_model("llama"), CPU)


@pytest.fixture(scope="module")
def single(tiny_model: Callable[..., Any]) -> FrozenTarget:
    return from_model(tiny_model("llama", dtype=torch.float32), CPU)


def make_head(target: FrozenTarget, *, prefix_filled: bool = True) -> DraftHead:
    config = head_config(
        target.shape, num_layers=2, block_size=DEPTH + 1, path_rank=8, taps=(0, 1, 3),
        prefix_filled=prefix_filled, input_bridge=True,
    )  # fmt: skip
    head = new_head(target, config, torch.arange(64).view(2, 32), seed=0).to(target.dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        assert head.path is not None and head.bridge is not None
        for bridge in (head.bridge.root, head.bridge.context):
            bridge.weight.normal_(0, 0.1, generator=generator)
        head.path.out.weight.normal_(0, 0.3, generator=generator)
        head.depth_offsets.normal_(0, 0.3, generator=generator)
    return head


def texts(count: int = 8, length: int = 12) -> Corpus:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 128, size=3) for _ in range(count)]
    answers = [rng.integers(0, 128, size=length) for _ in range(count)]
    return Corpus.of(prompts, answers, np.zeros(count, np.float32), np.zeros(count, np.bool_))


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"rows": 4, "width": 32, "anchors": 6, "chunks": 1, **changes})


def batch_of(fill: list[int], anchors: list[int], width: int = 21) -> Batch:
    """One row of two sequences, of 11 and 8 tokens."""
    rng = np.random.default_rng(7)
    documents = np.full((1, width), -1)
    documents[0, :11], documents[0, 11:19] = 0, 1
    positions = np.zeros((1, width), np.int64)
    positions[0, :11], positions[0, 11:19] = np.arange(11), np.arange(8)
    return Batch(
        tokens=rng.integers(0, 128, size=(1, width)),
        documents=documents,
        positions=positions,
        anchors=np.asarray([anchors]),
        reach=np.full((1, len(anchors)), DEPTH),
        places=np.where(documents < 0, -1, np.arange(width)),
        fill=np.asarray([fill]),
    )


def test_a_chain_filled_in_training_equals_the_second_pass_over_it(target: FrozenTarget) -> None:
    head = make_head(target)
    # The last block's tokens end with the row, and those behind are clamped.
    batch = batch_of([0, 1, 2, 3, 3, 1], [2, 5, 5, 5, 14, 19])
    assert batch.fill is not None
    tokens, documents, positions, anchors, fill = map(
        torch.from_numpy,
        (batch.tokens, batch.documents, batch.positions, batch.anchors, batch.fill),
    )
    features, _ = target.capture(
        tokens, positions, document_mask(documents), head.config.target_layer_ids
    )
    ropes = block_ropes(head, positions, anchors, target.dtype)
    rows = run_blocks(head, features, target.embedding, tokens, documents, ropes, anchors, fill)
    for i, (anchor, filled) in enumerate(zip(anchors[0].tolist(), fill[0].tolist(), strict=True)):
        start = 0 if anchor < 11 else 11
        if anchor == 19:
            start = 19
        fused = head.fuse(features[:, start:anchor])
        context = head.context_keys_values(fused, positions[:, start:anchor])
        path = batch.tokens[0, anchor : anchor + filled + 1]
        chain = Tree.from_parents(path, np.arange(-1, len(path) - 1))
        found = second_pass(
            head,
            target.embedding,
            PaddedTrees.of([chain], len(path), CPU),
            context,
            torch.tensor([anchor - start]),
            last_rows(fused[0], torch.tensor([anchor - start]))
            if anchor > start
            else torch.zeros(1, head.config.hidden_size, dtype=target.dtype),
        )
        assert torch.allclose(rows[0, i, filled], found[0, filled], atol=1e-9, rtol=0), i


def test_a_share_of_nothing_changes_nothing(target: FrozenTarget) -> None:
    head, batch = make_head(target), batch_of([0, 0, 0], [2, 6, 14])
    weights = depth_weights(batch.reach, DEPTH, 4.0, batch.fill)
    assert (weights == depth_weights(batch.reach, DEPTH, 4.0)).all()
    functions = StepFunctions.plain(Objective())
    gradients = []
    for fill in (batch.fill, None):
        head.zero_grad()
        step = StepLosses(target, head, target.embedding, 1, functions)
        step(replace(batch, fill=fill), weights).sum().backward()
        gradients.append([p.grad.clone() for p in head.parameters() if p.grad is not None])
    assert all(map(torch.equal, *gradients))
    without, filled = (
        build_batch(
            texts(), [np.arange(2)], width=32, anchors=5, depth=DEPTH, key=(3, 1), prefix_fill=share
        )
        for share in (0.0, 0.5)
    )
    assert without.fill is None and filled.fill is not None
    for name in ("tokens", "documents", "positions", "anchors", "reach"):
        assert (getattr(without, name) == getattr(filled, name)).all()


@given(
    reach=st.lists(st.integers(1, 15), min_size=1, max_size=40),
    share=st.floats(0.01, 0.99),
    key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**20 - 1)),
)
def test_fills_lie_within_what_a_block_reaches(
    reach: list[int], share: float, key: tuple[int, int, int]
) -> None:
    limits = np.asarray(reach)
    fill = draw_fills(limits, share, key)
    assert ((fill >= 0) & (fill < limits)).all()
    assert (draw_fills(limits, share, key) == fill).all()
    # Every block keeps a row that counts, and none that knows its own token.
    weights = depth_weights(limits[None], 15, 4.0, fill[None])[0]
    depths = np.arange(1, 16)
    assert ((weights > 0) == ((depths > fill[:, None]) & (depths <= limits[:, None]))).all()
    assert (weights > 0).any(axis=1).all()
    unfilled = depth_weights(limits[None], 15, 4.0)[0]
    assert (weights[weights > 0] == unfilled[weights > 0]).all()


def test_fills_are_as_frequent_as_asked_and_even() -> None:
    fill = draw_fills(np.full(60_000, 7), 0.4, (1, 2, 3))
    assert abs((fill > 0).mean() - 0.4) < 0.01
    counts = np.bincount(fill[fill > 0], minlength=7)[1:]
    assert len(counts) == 6 and abs(counts / counts.sum() - 1 / 6).max() < 0.01
    others = [draw_fills(np.full(50, 7), 0.4, key) for key in ((1, 2, 4), (1, 3, 3), (2, 2, 3))]
    assert all((other != fill[:50]).any() for other in others)


def test_two_processes_draw_what_one_draws() -> None:
    asked = config(prefix_fill=0.5, pieces=2)
    whole = Feed(texts(), replace(asked, pieces=1), DEPTH, 0, 1).batch(5)
    parts = [Feed(texts(), replace(asked, pieces=1), DEPTH, rank, 2).batch(5) for rank in (0, 1)]
    pieces = [Feed(texts(), asked, DEPTH, 0, 1).batch(5, piece) for piece in (0, 1)]
    assert whole.fill is not None and whole.fill.any()
    for some in (parts, pieces):
        fills = [each.fill for each in some if each.fill is not None]
        assert (np.concatenate(fills) == whole.fill).all()


def test_filled_steps_resume_exactly(single: FrozenTarget, tmp_path: Path) -> None:
    def trainer(out: str, **changes: Any) -> Trainer:
        asked = config(rows=2, prefix_fill=0.5, **changes)
        return Trainer(single, make_head(single), texts(), asked, tmp_path / out, compiled=False)

    horizon = Horizon(steps=4)
    straight = trainer("a")
    straight.run(horizon, report=_quiet)
    trainer("b").run(horizon, stop_after=2, report=_quiet)
    second = trainer("b")
    assert second.resume()
    second.run(horizon, report=_quiet)
    assert all(map(torch.equal, straight.head.parameters(), second.head.parameters()))
    other = trainer("c", seed=1)
    other.run(horizon, report=_quiet)
    assert not all(map(torch.equal, straight.head.parameters(), other.head.parameters()))


def test_a_head_that_was_not_made_for_it_is_refused(single: FrozenTarget, tmp_path: Path) -> None:
    head = make_head(single, prefix_filled=False)
    trainer = Trainer(
        single, head, texts(), config(rows=2, prefix_fill=0.9), tmp_path, compiled=False
    )
    with pytest.raises(ValueError, match="a prefix-filled block needs a head that was trained"):
        trainer.run(Horizon(steps=1), report=_quiet)


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_out_of_range_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"prefix_fill must be in \[0, 1\)"):
        config(prefix_fill=share)


def _quiet(text: str) -> None:
    assert text
