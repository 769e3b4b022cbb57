"""The training pass equals the drafting pass; runs learn, resume and never write what is broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.head.context import PaddedContext
from jetflow_core.head.model import DraftHead
from jetflow_train.blocks import block_ropes, run_blocks
from jetflow_train.evaluation.answers import answer_prompts
from jetflow_train.evaluation.offline import evaluate
from jetflow_train.evaluation.policies import OWN, exact_policies
from jetflow_train.guard import DivergedError
from jetflow_train.initialise import head_config, new_head, spread_taps
from jetflow_train.objectives import Objective
from jetflow_train.schedule import Horizon, learning_rate_factor
from jetflow_train.shards import Corpus, DataMismatchError
from jetflow_train.sight import document_mask
from jetflow_train.step import StepFunctions, StepLosses, teacher_columns
from jetflow_train.target import FrozenTarget, from_model
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer
from torch import Tensor

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Any]) -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def target(model: Any) -> FrozenTarget:
    return from_model(model, CPU)


def make_head(target: FrozenTarget, **options: Any) -> DraftHead:
    config = head_config(
        target.shape,
        **{
            "num_layers": 2,
            "block_size": 5,
            "path_rank": 8,
            "input_bridge": True,
            "taps": (0, 1, 3),
            **options,
        },
    )
    sample = torch.arange(64).view(2, 32) % target.shape.vocab_size
    head = new_head(target, config, sample, seed=0).to(target.dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Zero-initialised parts would hide an error in how they enter.
        if head.path is not None:
            head.path.out.weight.normal_(0, 0.3, generator=generator)
        if head.bridge is not None:
            for parameter in head.bridge.parameters():
                parameter.normal_(0, 0.05, generator=generator)
        head.depth_offsets.normal_(0, 0.3, generator=generator)
    return head


def packed_row(lengths: tuple[int, ...], width: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 128, (1, width), generator=generator)
    documents = torch.full((1, width), -1)
    positions = torch.zeros(1, width, dtype=torch.int64)
    start = 0
    for number, length in enumerate(lengths):
        documents[0, start : start + length] = number
        positions[0, start : start + length] = torch.arange(length)
        start += length
    return tokens, documents, positions


def test_captured_features_are_those_of_transformers(model: Any, target: FrozenTarget) -> None:
    tokens, documents, positions = packed_row((9, 7), 18)
    features, final = target.capture(tokens, positions, document_mask(documents), (0, 1, 3))
    for start, end in ((0, 9), (9, 16)):
        plain = model(tokens[:, start:end], output_hidden_states=True)
        assert torch.allclose(
            final[:, start:end] @ target.lm_head.T, plain.logits, atol=1e-9, rtol=0
        )
        wanted = torch.cat([plain.hidden_states[1], plain.hidden_states[2]], -1)
        assert torch.allclose(features[:, start:end, :128], wanted, atol=1e-9, rtol=0)


def test_packed_blocks_equal_the_block_pass_on_the_cut_context(target: FrozenTarget) -> None:
    head = make_head(target)
    tokens, documents, positions = packed_row((11, 8), 21)
    mask = document_mask(documents)
    features, _ = target.capture(tokens, positions, mask, head.config.target_layer_ids)
    anchors = torch.tensor([[0, 3, 3, 9, 11, 15]])
    ropes = block_ropes(head, positions, anchors, target.dtype)
    packed = run_blocks(head, features, target.embedding, tokens, documents, ropes, anchors)
    for i, anchor in enumerate(anchors[0].tolist()):
        start = 0 if anchor < 11 else 11
        places = positions[:, start:anchor]
        fused = head.fuse(features[:, start:anchor])
        context = head.context_keys_values(fused, places)
        root = tokens[0, anchor : anchor + 1]
        block = head.block_input(root, target.embedding, 4)
        last = fused[:, -1] if anchor > start else torch.zeros_like(head.fuse(features[:, 0]))
        block = head.bridged(block, target.embedding[root], last)
        slots = anchor - start + torch.arange(5)[None]
        seen = torch.ones(5, anchor - start, dtype=torch.bool)
        whole = torch.cat([seen, head.block_mask(5, CPU)], dim=1)[None, None]
        alone = head.depth_rows(head.run_block(block, slots, PaddedContext(context, whole)), 4)
        assert torch.allclose(packed[0, i], alone[0], atol=1e-9, rtol=0)


def test_nothing_at_or_behind_the_anchor_leaks(target: FrozenTarget) -> None:
    head = make_head(target)
    tokens, documents, positions = packed_row((11, 8), 21)
    features = torch.randn(1, 21, head.config.feature_size, dtype=target.dtype)
    anchors = torch.tensor([[4, 14]])

    ropes = block_ropes(head, positions, anchors, target.dtype)

    def run(features: Tensor, tokens: Tensor) -> Tensor:
        return run_blocks(head, features, target.embedding, tokens, documents, ropes, anchors)

    before = run(features, tokens)
    changed, others = features.clone(), tokens.clone()
    changed[0, 4:11] += 100.0
    changed[0, 14:] += 100.0
    others[0, 5:11] = 1
    others[0, 15:] = 1
    assert torch.equal(run(changed, others), before)
    changed[0, 3] += 1.0
    after = run(changed, others)
    assert not torch.equal(after[0, 0], before[0, 0])
    assert torch.equal(after[0, 1], before[0, 1])


def greedy_corpus(target: FrozenTarget, count: int, length: int) -> Corpus:
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 128, size=3) for _ in range(count)]
    answers = [rng.integers(0, 128, size=length) for _ in range(count)]
    return Corpus.of(prompts, answers, np.zeros(count, np.float32), np.zeros(count, np.bool_))


def test_teachers_are_the_true_parents_columns() -> None:
    columns = teacher_columns(torch.tensor([[2, 6]]), 3, 8)
    assert columns.tolist() == [[[2, 3, 4], [6, 7, 7]]]


def narrow(target: FrozenTarget) -> FrozenTarget:
    """The same target in fp32, as training uses it on a CPU."""

    def cast(value: Any) -> Any:
        return value.float() if isinstance(value, Tensor) else value

    return replace(
        target,
        layers=tuple(type(w)(*map(cast, w)) for w in target.layers),
        **{
            name: cast(getattr(target, name))
            for name in ("embedding", "lm_head", "final_norm", "cos", "sin")
        },
    )


def make_trainer(
    target: FrozenTarget, out: Path, *, corpus: Corpus | None = None, **settings: Any
) -> Trainer:
    config = TrainConfig(**{"rows": 2, "width": 32, "anchors": 4, "chunks": 2, **settings})
    head = make_head(target).float()
    corpus = corpus or greedy_corpus(target, 8, 12)
    return Trainer(target, head, corpus, config, out, compiled=False)


def test_twenty_steps_equal_ten_and_ten_resumed(target: FrozenTarget, tmp_path: Path) -> None:
    single = narrow(target)
    horizon = Horizon(steps=20)
    straight = make_trainer(single, tmp_path / "a")
    straight.run(horizon, report=_quiet)
    make_trainer(single, tmp_path / "b").run(horizon, stop_after=10, report=_quiet)
    second = make_trainer(single, tmp_path / "b")
    assert second.resume() and second.progress.step == 10
    second.run(horizon, report=_quiet)
    assert second.progress.step == 20
    for (name, one), other in zip(
        straight.head.named_parameters(), second.head.parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    changed = make_trainer(single, tmp_path / "b", gamma=7.0)
    with pytest.raises(DataMismatchError, match="gamma"):
        changed.resume()


def test_a_broken_weight_is_never_written(target: FrozenTarget, tmp_path: Path) -> None:
    trainer = make_trainer(narrow(target), tmp_path)
    with torch.no_grad():
        trainer.head.norm.weight[0] = float("nan")
    with pytest.raises(DivergedError, match=r"norm\.weight"):
        trainer.save()
    with pytest.raises(DivergedError, match="5 steps in a row had no finite gradient"):
        trainer.run(Horizon(steps=9), log_every=1, report=_quiet)
    assert trainer.progress.step == 5
    assert not list(tmp_path.glob("*.pt"))


def test_a_broken_batch_is_skipped_and_named(
    target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(narrow(target), tmp_path)
    capture, calls, told = FrozenTarget.capture, [0], []

    def broken_once(self: FrozenTarget, *arguments: Any) -> tuple[Tensor, Tensor]:
        features, final = capture(self, *arguments)
        calls[0] += 1
        return (features.fill_(float("inf")), final) if calls[0] == 3 else (features, final)

    monkeypatch.setattr(FrozenTarget, "capture", broken_once)
    trainer.run(Horizon(steps=2), report=_quiet)
    before = [parameter.clone() for parameter in trainer.head.parameters()]
    trainer.run(Horizon(steps=3), report=told.append)
    assert all(map(torch.equal, before, trainer.head.parameters()))
    named = [row.tolist() for row in trainer.feed.sequences(2)]
    assert f"step 2 skipped, its gradient is not finite; sequences {named}" in told
    trainer.run(Horizon(steps=4), report=_quiet)
    assert not all(map(torch.equal, before, trainer.head.parameters()))
    entry = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    assert entry["skipped"] == {"2": named}


def test_a_run_without_a_finite_step_ends_in_an_error(
    target: FrozenTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(narrow(target), tmp_path)
    trainer.embedding.fill_(float("nan"))
    with pytest.raises(DivergedError, match="none of the 2 steps had a finite gradient"):
        trainer.run(Horizon(steps=2), report=_quiet)
    assert not (tmp_path / "state.pt").exists()


@pytest.mark.parametrize("pieces", [2, 4])
def test_pieces_of_a_step_make_the_same_step(
    target: FrozenTarget, tmp_path: Path, pieces: int
) -> None:
    made = []
    for number in (1, pieces):
        # In float64, or the optimizer would magnify the rounding of vanishing gradients; Muon turns
        # matrices in bf16, whatever their type.
        config = TrainConfig(
            rows=4, width=32, anchors=4, chunks=1, pieces=number, optimizer="adamw"
        )
        head, corpus = make_head(target), greedy_corpus(target, 8, 12)
        trainer = Trainer(target, head, corpus, config, tmp_path / str(number), compiled=False)
        trainer.run(Horizon(steps=3), report=_quiet)
        made.append((trainer.progress.history[-1], list(trainer.head.parameters())))
    assert made[0][0]["base_loss"] == pytest.approx(made[1][0]["base_loss"], rel=1e-6)
    for one, other in zip(made[0][1], made[1][1], strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_rows_that_cannot_be_shared_out_are_refused() -> None:
    with pytest.raises(ValueError, match="rows 32 must be a multiple of processes 1 x pieces 3"):
        TrainConfig(pieces=3)
    with pytest.raises(ValueError, match="processes 16 x pieces 1 x chunks 4"):
        TrainConfig().rows_of_a_piece(16)


def test_the_path_term_learns_on_a_detached_base(target: FrozenTarget) -> None:
    """The base's gradient is that of its own loss alone, whatever the path term reads of it."""
    batch = make_trainer(target, Path("unused")).feed.batch(0)
    weights = np.ones((*batch.reach.shape, 4), np.float32)
    gradients = []
    for scale in (0.0, 1.0):
        head = make_head(target, path_context=True)
        functions = StepFunctions.plain(Objective())
        losses = StepLosses(target, head, target.embedding, 1, functions)(batch, weights)
        (losses[0] + scale * losses[1]).backward()
        gradients.append({name: p.grad for name, p in head.named_parameters()})
    for name, without in gradients[0].items():
        with_path = gradients[1][name]
        if name.startswith("path."):
            assert with_path is not None and with_path.abs().sum() > 0, name
        else:
            assert torch.equal(without, with_path), name


@pytest.mark.slow
def test_one_batch_overfits_to_the_full_depth(target: FrozenTarget, tmp_path: Path) -> None:
    # A random target is nearly undecided; a larger lm_head makes its answers certain.
    single = narrow(target)
    single = replace(single, lm_head=16 * single.lm_head)
    prompts = [np.asarray([9, 4, 77]), np.asarray([50, 3])]
    answers = answer_prompts(single, prompts, max_new_tokens=20)
    corpus = Corpus.of(
        prompts,
        [text.tokens[text.prompt_len :] for text in answers.texts],
        np.zeros(2, np.float32),
        np.zeros(2, np.bool_),
    )
    trainer = make_trainer(
        single, tmp_path, corpus=corpus, rows=1, chunks=1, width=64, anchors=40,
        learning_rate=3e-3, gamma=100.0,
    )  # fmt: skip
    head_depth = trainer.head.config.max_depth
    policies = {OWN: exact_policies([16], head_depth)}
    before = evaluate(single, trainer.head, answers, policies).of(OWN)["tree-16"].tau
    trainer.run(Horizon(steps=100), report=_quiet)
    after = evaluate(single, trainer.head, answers, policies)
    # 20 tokens an answer, in rounds of 4 accepted ones and the correction.
    assert before < 2.0
    assert after.of(OWN)["tree-16"].tau == head_depth + 1
    assert min(after.top1[OWN].shares) > 0.9


def test_the_schedule_warms_up_and_ends_at_its_floor() -> None:
    factors = [learning_rate_factor(x, 0.04, 0.06) for x in np.linspace(0, 1, 101)]
    assert factors[0] > 0 and max(factors) == pytest.approx(1.0) and factors[4] == max(factors)
    assert factors[-1] == pytest.approx(0.06)
    assert learning_rate_factor(7.0, 0.04, 0.06) == pytest.approx(0.06)
    assert Horizon(minutes=2.0).progress(60.0, 5) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="either"):
        Horizon()
    with pytest.raises(ValueError, match="above 0"):
        Horizon(steps=0)


def test_default_taps_are_spread_over_the_target() -> None:
    assert spread_taps(30) == (1, 8, 14, 21, 27)
    assert spread_taps(4) == (1,)


def _quiet(text: str) -> None:
    assert text
