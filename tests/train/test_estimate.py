"""The estimate against the real thing: weights, optimizer state, and memory during a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from jetflow_train.estimate import (
    estimate,
    head_parameters,
    optimizer_bytes,
    size,
    step_bytes,
    target_bytes,
)
from jetflow_train.heads import HeadChoice, start_head
from jetflow_train.pace import clock, pace
from jetflow_train.packing import pack
from jetflow_train.schedule import Horizon
from jetflow_train.shards import Corpus
from jetflow_train.target import FrozenTarget, from_model
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer
from torch.profiler import ProfilerActivity, profile

CPU = torch.device("cpu")


def make_target(tiny_model: Callable[..., Any], **options: Any) -> FrozenTarget:
    return from_model(tiny_model("llama", dtype=torch.float32, **options), CPU)


def make_corpus(count: int, vocab: int = 128, longest: int = 60) -> Corpus:
    rng = np.random.default_rng(0)
    answers = [rng.integers(0, vocab, size=int(n)) for n in rng.integers(1, longest, size=count)]
    prompts = [rng.integers(0, vocab, size=8) for _ in answers]
    return Corpus.of(prompts, answers, np.zeros(count, np.float32), np.zeros(count, np.bool_))


@settings(max_examples=40)
@given(
    layers=st.integers(1, 4),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 3)]),
    sizes=st.tuples(st.sampled_from([8, 16]), st.integers(1, 40), st.sampled_from([4, 6])),
    taps=st.integers(1, 5),
    path=st.sampled_from([(0, False), (7, False), (7, True)]),
    learned=st.booleans(),
    offsets=st.booleans(),
)
def test_weights_of_a_head_are_counted_right(
    layers: int,
    heads: tuple[int, int],
    sizes: tuple[int, int, int],
    taps: int,
    path: tuple[int, bool],
    learned: bool,
    offsets: bool,
) -> None:
    config = HeadConfig(
        hidden_size=sizes[0],
        intermediate_size=sizes[1],
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=sizes[2],
        vocab_size=33,
        block_size=4,
        num_target_layers=6,
        target_layer_ids=tuple(range(taps)),
        mask_token_id=None if learned else 3,
        learned_mask=learned,
        path_rank=path[0],
        path_context=path[1],
        depth_offset_rows=4 if offsets else 0,
    )
    with torch.device("meta"):
        head = DraftHead(config)
    assert head_parameters(config) == sum(weight.numel() for weight in head.parameters())


# Each makes another part of a step the largest.
SHAPES = {
    "logits": ({"vocab_size": 4000}, {}, {"chunks": 1}),
    "logits, no path term": ({"vocab_size": 4000}, {"path_rank": 0}, {"chunks": 1}),
    "attention": ({}, {}, {"width": 384, "rows": 4, "anchors": 48}),
    "layers": ({"hidden_size": 128, "intermediate_size": 384}, {}, {"width": 72, "anchors": 64}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_memory_of_a_step_is_what_is_estimated(
    name: str, tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    model, choice, sizes = SHAPES[name]
    target = make_target(tiny_model, **model)
    vocab = target.shape.vocab_size
    head_choice = HeadChoice(**{"num_layers": 2, "block_size": 8, "path_rank": 16, **choice})
    config = TrainConfig(**{"rows": 4, "width": 128, "anchors": 16, "chunks": 4, **sizes})
    corpus = make_corpus(120, vocab)
    trainer = Trainer(
        target, start_head(target, corpus, head_choice, 0), corpus, config, tmp_path, compiled=False
    )
    head = trainer.head.config
    expected = estimate(target, head, config, corpus)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        trainer.run(Horizon(steps=1), report=lambda _: None)
    state = [each for found in trainer.optimizer.state.values() for each in found.values()]
    assert sum(each.numel() * each.element_size() for each in state) == expected.optimizer
    weights = sum(each.numel() * each.element_size() for each in trainer.head.parameters())
    assert weights == expected.weights == expected.gradients
    during = expected.peak - expected.weights - expected.target
    assert 0.8 < _peak(seen) / during < 1.02, (_peak(seen), asdict(expected))


def _peak(seen: profile) -> int:
    """Most bytes allocated at one time while ``seen`` watched."""
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def test_sharing_a_step_out_needs_less_and_learns_the_same_rows(
    tiny_model: Callable[..., Any],
) -> None:
    target, corpus = make_target(tiny_model), make_corpus(50)
    head = HeadChoice(num_layers=1, block_size=4, path_rank=4).config(target.shape)
    whole = TrainConfig(rows=8, width=64, anchors=4, chunks=1)
    pieces = TrainConfig(rows=8, width=64, anchors=4, chunks=1, pieces=2)
    one, two = (estimate(target, head, config, corpus) for config in (whole, pieces))
    shared = estimate(target, head, whole, corpus, processes=2)
    assert one.step.attention == 2 * two.step.attention == 2 * shared.step.attention
    assert one.loss_rows == two.loss_rows == shared.loss_rows == 8 * 4 * 3
    assert step_bytes(head, whole, narrow=2).features < one.step.features
    sharded = estimate(target, head, whole, corpus, processes=2, shard="all")
    assert 2 * sharded.optimizer == shared.optimizer == one.optimizer
    assert target_bytes(target) / 2 < sharded.target < shared.target == target_bytes(target)
    with pytest.raises(ValueError, match="multiple of processes 3"):
        estimate(target, head, whole, corpus, processes=3)


def test_weights_of_a_target_are_counted_once(tiny_model: Callable[..., Any]) -> None:
    for tied in (True, False):
        model = tiny_model("llama", dtype=torch.float32, tie_word_embeddings=tied)
        target = from_model(model, CPU)
        tables = 2 * target.cos.numel()
        weights = sum(parameter.numel() for parameter in model.parameters())
        assert target_bytes(target) == 4 * (weights + tables)


def test_an_epoch_is_about_as_long_as_told(tiny_model: Callable[..., Any]) -> None:
    target, corpus = make_target(tiny_model), make_corpus(400)
    head = HeadChoice(num_layers=1, block_size=4).config(target.shape)
    config = TrainConfig(rows=4, width=48, anchors=4)
    told = estimate(target, head, config, corpus)
    rows = pack(corpus, config.width, 0, 0)
    shown = [min(int(corpus.lengths[i]), config.width) for row in rows for i in row]
    assert told.tokens == sum(shown)
    assert told.steps <= len(rows) // config.rows + 1
    assert told.steps >= 0.7 * (len(rows) // config.rows)


def test_the_estimate_is_told_in_three_lines(tiny_model: Callable[..., Any]) -> None:
    target = make_target(tiny_model)
    config = HeadChoice(num_layers=1, block_size=4, path_rank=4).config(target.shape)
    told = estimate(target, config, TrainConfig(rows=4, chunks=1), make_corpus(9))
    first, second, third = told.lines()
    assert f"head: {head_parameters(config):,} weights" in first
    assert size(told.peak) in second
    assert f"{told.tokens:,} tokens" in third
    stored = told.to_dict()
    assert stored["optimizer"] == optimizer_bytes(config, "muon")
    assert 0 < optimizer_bytes(config, "muon") < optimizer_bytes(config, "adamw")
    assert stored["peak"] == told.peak
    assert stored["step"]["logits"] == told.step.logits


def test_bytes_and_times_for_people() -> None:
    assert [size(n) for n in (0, 1023, 1024, 3 * 2**29)] == ["0 B", "1023 B", "1.0 KiB", "1.5 GiB"]
    assert [clock(s) for s in (0, 59.6, 3723)] == ["0:00:00", "0:01:00", "1:02:03"]


def test_the_time_left_is_told_after_twenty_steps() -> None:
    assert pace(19, 10.0, 0.5, 700.0) == ""
    assert pace(20, 10.0, 0.25, 1234.4) == ", 1,234 rows/s, 2.0 steps/s, 0:00:30 left"
    assert pace(20, 10.0, 1.0, 0.0) == ", 0 rows/s, 2.0 steps/s, 0:00:00 left"
