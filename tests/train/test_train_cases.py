"""Faults that cost other trainers weeks: what is supervised, what leaks, what a resume forgets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.engine import Engine
from jetflow_train.corpus_text import thinking_in
from jetflow_train.loss import LossRows, chunk_losses, chunked_losses
from jetflow_train.objectives import OBJECTIVES, Objective, ObjectiveName
from jetflow_train.packing import build_batch, depth_weights, pack
from jetflow_train.prompts import load_prompts
from jetflow_train.schedule import Horizon
from jetflow_train.shards import Corpus, write_manifest
from jetflow_train.step import StepLosses
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

# As stock templates are: no marks around the answer, and a switch for thinking.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}"
    "{% if add_generation_prompt %}<assistant> "
    "{% if enable_thinking is defined and enable_thinking is false %}<think> </think> {% endif %}"
    "{% endif %}"
)
WORDS = ("<user>", "<assistant>", "<end>", "<think>", "</think>", "what", "is", "two", "?")


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: number for number, word in enumerate((*WORDS, "<other>"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<other>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE)
    fast.save_pretrained(tmp_path / "target")
    lines = ('{"prompt": "what is two ?"}', '{"prompt": "two ?"}')
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    return tmp_path / "target"


def test_exactly_the_answers_tokens_are_learnt(tokenizer_folder: Path) -> None:
    prompts = load_prompts(tokenizer_folder, [tokenizer_folder.parent / "p.jsonl"]).tokens
    assert [len(prompt) for prompt in prompts] == [7, 5]
    answers = [np.asarray([7, 8, 7, 2]), np.asarray([6, 6, 2])]
    corpus = Corpus.of(prompts, answers, np.zeros(2, np.float32), np.ones(2, np.bool_))
    (row,) = pack(corpus, 24, 0, 0)
    # As many anchors as there are roots, so that every one is drawn.
    batch = build_batch(corpus, [row], width=24, anchors=7, depth=3, key=(0, 0))
    learnt = {
        (int(batch.documents[0, anchor]), int(anchor) + depth)
        for anchor, reach in zip(batch.anchors[0], batch.reach[0], strict=True)
        for depth in range(1, int(reach) + 1)
    }
    wanted, start = set(), 0
    for number, sequence in enumerate(row.tolist()):
        start += len(prompts[sequence])
        wanted |= {(number, start + i) for i in range(len(answers[sequence]))}
        start += len(answers[sequence])
    assert learnt == wanted


def test_a_row_without_an_answer_is_refused_by_name() -> None:
    tokens = [np.arange(4), np.arange(5)]
    nothing = [np.zeros(0, np.int64), np.zeros(0, np.int64)]
    corpus = Corpus.of(tokens, nothing, np.zeros(2, np.float32), np.zeros(2, np.bool_))
    assert pack(corpus, 16, 0, 0) == []
    with pytest.raises(ValueError, match=r"sequences \[1, 0\] hold no answer"):
        build_batch(corpus, [np.asarray([1, 0])], width=16, anchors=2, depth=3, key=(0, 0))


def test_prompts_of_training_are_those_of_generation(tokenizer_folder: Path) -> None:
    """Both render the template's own default, so that one thinking mode holds in both."""
    from jetflow_core.loading import load_tokenizer

    tokenizer = load_tokenizer(tokenizer_folder)
    engine: Any = SimpleNamespace(target=SimpleNamespace(tokenizer=tokenizer))
    found = load_prompts(tokenizer_folder, [tokenizer_folder.parent / "p.jsonl"])
    assert [tuple(prompt.tolist()) for prompt in found.tokens] == [
        Engine.encode(engine, text) for text in ("what is two ?", "two ?")
    ]
    before = found.provenance["chat_template_sha256"]
    (tokenizer_folder / "chat_template.jinja").write_text(TEMPLATE.replace("is false", "is true"))
    changed = load_prompts(tokenizer_folder, [tokenizer_folder.parent / "p.jsonl"])
    # The manifest keeps this: data of another template is neither gone on with nor mixed up.
    assert changed.provenance["chat_template_sha256"] != before


def test_the_thinking_mode_is_recorded_and_held_to(tokenizer_folder: Path) -> None:
    from jetflow_core.loading import load_tokenizer

    files = [tokenizer_folder.parent / "p.jsonl"]
    engine: Any = SimpleNamespace(
        target=SimpleNamespace(tokenizer=load_tokenizer(tokenizer_folder))
    )
    for thinking, told in ((None, True), (True, True), (False, False)):
        found = load_prompts(tokenizer_folder, files, thinking=thinking)
        assert found.provenance["thinking"] is told
        assert tuple(found.tokens[0].tolist()) == Engine.encode(
            engine, "what is two ?", thinking=thinking
        )
    plain = TEMPLATE.replace("enable_thinking", "other_switch")
    (tokenizer_folder / "chat_template.jinja").write_text(plain)
    assert "thinking" not in load_prompts(tokenizer_folder, files).provenance
    with pytest.raises(ValueError, match="--thinking off: the target's chat template has no"):
        load_prompts(tokenizer_folder, files, thinking=False)


def test_the_mode_of_a_head_is_that_of_all_its_data(tmp_path: Path) -> None:
    for name, told in (("on", {"thinking": True}), ("off", {"thinking": False}), ("none", {})):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, {"target": {}, "shards": [], "prompts": told})
    on, off, none = (tmp_path / name for name in ("on", "off", "none"))
    assert thinking_in([on]) is thinking_in([on, on]) is True
    assert thinking_in([off]) is False
    assert thinking_in([on, off]) is thinking_in([none]) is thinking_in([off, none]) is None


def test_a_resumed_run_keeps_rates_data_and_moments(
    new_run: Callable[..., Any], tmp_path: Path
) -> None:
    def watched(trainer: Any) -> Any:
        step, batch = trainer.optimizer.step, trainer.feed.batch

        def note_rates() -> None:
            rates.append([group["lr"] for group in trainer.optimizer.param_groups])
            step()

        def note_data(number: int, piece: int) -> Any:
            made = batch(number, piece)
            data.append((number, made.tokens.tolist(), made.anchors.tolist()))
            return made

        trainer.optimizer.step, trainer.feed.batch = note_rates, note_data
        return trainer

    runs = []
    for parts in ((20,), (10, 20)):
        rates: list[list[float]] = []
        data: list[tuple[int, Any, Any]] = []
        for stop_after in parts:
            trainer = watched(new_run(tmp_path / str(len(parts)), optimizer="muon"))
            trainer.run(Horizon(steps=20), stop_after=stop_after, report=_quiet)
        moments = trainer.optimizer.state
        assert len(moments) == len(list(trainer.head.parameters())) > 0
        assert {"exp_avg_sq", "momentum_buffer"} == {
            name for moment in moments.values() for name in moment
        } - {"exp_avg", "step"}
        assert all(value.any() for moment in moments.values() for value in moment.values())
        runs.append((rates, data, trainer.head, list(moments.values())))
    (rates, data, head, moments), (rates2, data2, head2, moments2) = runs
    assert rates == rates2
    assert data == data2
    assert len(rates) == 20
    for one, other in zip(head.parameters(), head2.parameters(), strict=True):
        assert torch.equal(one, other)
    for one, other in zip(moments, moments2, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_packed_neighbour_changes_no_loss_and_no_gradient(
    new_run: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = new_run(tmp_path)
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 64, (2, 10)), rng.integers(0, 64, 10)
    results = []
    for neighbour in first:
        corpus = Corpus.of(
            [neighbour[:3], second[:3]],
            [neighbour[3:], second[3:]],
            np.zeros(2, np.float32),
            np.zeros(2, np.bool_),
        )
        batch = build_batch(corpus, [np.asarray([0, 1])], width=24, anchors=9, depth=3, key=(0, 0))
        weights = depth_weights(batch.reach, 3, 4.0)
        # Only the second text is asked about.
        weights[batch.anchors < 10] = 0
        assert weights.any()
        trainer.head.zero_grad(set_to_none=True)
        losses = trainer.losses(batch, weights)
        losses.sum().backward()
        results.append([losses.detach(), *(w.grad for w in trainer.head.parameters())])
    assert isinstance(trainer.losses, StepLosses)
    assert results[0][0].all()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_memory_of_the_loss_is_bounded_by_a_chunk(name: ObjectiveName) -> None:
    rows, vocab, hidden, rank = 256, 2048, 8, 4
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    lm_head, out = draw(vocab, hidden), draw(vocab, rank).requires_grad_()
    base, parents, teacher = draw(rows, hidden), draw(rows, rank), draw(rows, hidden)
    peaks = {}
    for chunks in (1, 16):
        cut = partial(torch.Tensor.view, size=(chunks, rows // chunks, -1))
        inputs = LossRows(
            hidden=cut(base).requires_grad_(),
            parents=cut(parents).requires_grad_(),
            teacher=cut(teacher),
            index=torch.arange(rows // chunks).expand(chunks, -1),
            tokens=torch.zeros(chunks, rows // chunks, dtype=torch.int64),
            weights=torch.ones(chunks, rows // chunks),
        )
        chunk = partial(chunk_losses, objective=Objective(name))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            losses = chunked_losses(inputs, lm_head, out, chunk)
            (losses.base + losses.path).backward()
        peaks[chunks] = _peak(seen)
    copy = rows * vocab * 4
    assert peaks[1] > 2 * copy
    assert peaks[16] < peaks[1] / 8
    # A few copies of a chunk's logits; no [rows, vocabulary] tensor of all rows.
    assert peaks[16] < copy


def _peak(seen: profile) -> int:
    """Most bytes held at once."""
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = np.cumsum([e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())])
    return int(held.max())


def _quiet(text: str) -> None:
    assert text
