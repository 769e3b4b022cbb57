"""What the front door promises: streamed text, request numbers, refusals, drafters of one's own."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.decode import ContextTooLong
from jetflow_core.drafters.probe import oracle, random_tree
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.fit import HeadMismatch
from jetflow_core.head.checkpoint import HeadInfo, LoadedHead
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from jetflow_tree import BestFirst, Candidates, Tree
from torch import Tensor

PROMPT = (3, 14, 15, 92, 65)
PLAIN, TREES = TreeOptions(budget=1), TreeOptions(budget=12)
FEW = SamplingParams(max_new_tokens=4)


def _head(target: Target, taps: tuple[int, ...]) -> LoadedHead:
    config = HeadConfig(
        hidden_size=target.hidden_size, intermediate_size=32, num_layers=1, num_heads=2,
        num_kv_heads=1, head_dim=8, vocab_size=target.vocab_size, block_size=4,
        num_target_layers=target.num_layers, target_layer_ids=taps, mask_token_id=0,
        max_position_embeddings=target.context_length, candidates=2,
    )  # fmt: skip
    torch.manual_seed(0)
    head = DraftHead(config).to(target.dtype).eval().requires_grad_(False)
    return LoadedHead(head, HeadInfo(), Path("head"))


@pytest.fixture(scope="module")
def speaking(tiny_model: Callable[..., Any], tiny_tokenizer: Path) -> Engine:
    """An engine with a tokenizer, and a head whose drafts are accepted now and then."""
    target = Target.from_model(
        tiny_model("qwen3"), taps=(0, 3), tokenizer_source=str(tiny_tokenizer)
    )
    return Engine(target, _head(target, (0, 3)))


# Text


class Elsewhere:
    """A builder whose trees begin at another token than they were asked to."""

    def build(self, root: int, candidates: Candidates, budget: int) -> Tree:
        return BestFirst().build(root + 1, candidates, budget)


def test_a_builder_that_moves_the_root_is_refused(speaking: Engine) -> None:
    options = TreeOptions(budget=4, builder=Elsewhere())
    with pytest.raises(ValueError, match=r"request 0 has the root 66; its last .* is 65"):
        list(speaking.rounds([PROMPT], [FEW], options))


@pytest.mark.parametrize("slots", [0, -1, 1.5, True])
def test_slots_are_a_whole_number(speaking: Engine, slots: Any) -> None:
    with pytest.raises(ValueError, match=f"num_slots must be a whole number, .* got {slots!r}"):
        speaking.rounds([PROMPT], [FEW], TREES, num_slots=slots)


def _params(text: str) -> list[SamplingParams]:
    """Ends of every kind: the limit, stop strings, and held-back beginnings of stop strings."""
    return [
        SamplingParams(max_new_tokens=24),
        SamplingParams(max_new_tokens=24, stop=(text[9:12],)),
        # The text ends as the stop string begins, so that its last letters are held back.
        SamplingParams(max_new_tokens=24, stop=(text[-3:] + "\x00",)),
        SamplingParams(max_new_tokens=24, temperature=1.0, seed=5, stop=("zz",)),
        SamplingParams(max_new_tokens=0),
    ]


@pytest.mark.slow
def test_streams_and_rounds_give_the_whole_text(speaking: Engine) -> None:
    text = speaking.generate(PROMPT, SamplingParams(max_new_tokens=24), PLAIN).text
    assert len(text) > 20
    for params in _params(text):
        whole = speaking.generate(PROMPT, params, PLAIN)
        for options in (PLAIN, TREES, TreeOptions(budget=30)):
            pieces = list(speaking.stream(PROMPT, params, options))
            assert all(pieces)
            assert "".join(pieces) == whole.text
            rounds = list(speaking.rounds([PROMPT], [params], options))
            assert "".join(r.text for r in rounds) == whole.text
            assert all(len(r.pieces) == len(r.picks) for r in rounds)
    held = speaking.generate(PROMPT, _params(text)[2], PLAIN)
    assert held.text == text, "no letter is lost that was held back until the end"


def test_a_tokenizer_that_cannot_be_streamed_gives_its_text_at_the_end(
    speaking: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = speaking.generate(PROMPT, FEW, PLAIN).text

    class Letters:
        def decode(self, ids: Sequence[int], /, *, skip_special_tokens: bool = False) -> str:
            return str(tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    tokenizer = speaking.target.tokenizer
    monkeypatch.setitem(speaking.target.__dict__, "tokenizer", Letters())
    assert list(speaking.stream(PROMPT, FEW, TREES)) == [whole]


def test_no_tokenizer_no_stream(tiny_target: Target) -> None:
    with pytest.raises(ValueError, match="no tokenizer"):
        Engine(tiny_target, None).stream(PROMPT, FEW, PLAIN)


# What is refused, before any work


def test_requests_of_no_token_keep_their_numbers_and_their_checks(tiny_target: Target) -> None:
    engine = Engine(tiny_target, None)
    none, two = SamplingParams(max_new_tokens=0), SamplingParams(max_new_tokens=2)
    rounds = list(engine.rounds([PROMPT, (9,), (7,)], [none, two, two], PLAIN, num_slots=2))
    assert [r.request for r in rounds] == [1, 2, 1, 2]
    found = engine.generate_batch([PROMPT, (9,)], [none, two], PLAIN)
    assert [len(each.tokens) for each in found] == [0, 2]
    for params in (none, two):
        with pytest.raises(ValueError, match="holds no token"):
            engine.generate([], params, PLAIN)
        with pytest.raises(ContextTooLong, match="has 256 tokens"):
            engine.generate([1] * 256, params, PLAIN)
        with pytest.raises(ValueError, match="holds no token"):
            engine.rounds([PROMPT, ()], [two, params], PLAIN)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("hello", "got the text 'hello'"),
        (b"hello", "got the text"),
        ([3.9, 5.2], "whole numbers; got 3.9"),
        ([3, 5.0], "whole numbers; got 5.0"),
        ([True], "whole numbers; got True"),
        (["3"], "whole numbers; got '3'"),
        ([[3, 5]], r"whole numbers; got \[3, 5\]"),
        (torch.tensor([3.0]), "whole numbers; got tensor"),
        (7, "sequence of token ids, got 7"),
        ([128], "128"),
    ],
)
def test_what_is_no_prompt_is_refused_by_name(
    tiny_target: Target, prompt: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(tiny_target, None).generate(prompt, FEW, PLAIN)


def test_arrays_and_tensors_of_ids_are_prompts(tiny_target: Target) -> None:
    engine = Engine(tiny_target, None)
    right = engine.generate([3, 5], FEW, PLAIN)
    for prompt in (np.array([3, 5]), torch.tensor([3, 5])):
        found = engine.generate(prompt, FEW, PLAIN)  # type: ignore[arg-type]
        assert (found.prompt, found.tokens) == ((3, 5), right.tokens)
        assert all(type(token) is int for token in found.prompt)


@pytest.mark.parametrize("depth", [2.5, True, 0, "3"])
def test_a_depth_is_a_whole_number(depth: Any) -> None:
    with pytest.raises(ValueError, match=f"depth {depth!r} is out of range"):
        TreeOptions(depth=depth)


@pytest.mark.parametrize("taps", [(0, 1), (3, 0), (0,), (0, 1, 3)])
def test_a_target_tapped_elsewhere_is_refused(speaking: Engine, taps: tuple[int, ...]) -> None:
    head = _head(speaking.target, taps)
    with pytest.raises(HeadMismatch) as raised:
        Engine(speaking.target, head)
    assert str(list(taps)) in str(raised.value) and "[0, 3]" in str(raised.value)


# Drafters of one's own, and measuring


class Careful:
    """Writes down what it is asked, and knows no prompt but the real ones."""

    max_depth = 3

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self._prompts = [tuple(prompt) for prompt in prompts]
        self.begun: list[tuple[int, ...]] = []

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        assert tuple(prompt) in self._prompts
        self.begun.append(tuple(prompt))

    def observe(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        assert self.begun

    def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Candidates]:
        assert self.begun
        return [Candidates.marginal(np.ones((depth, 1), int), np.zeros((depth, 1))) for _ in slots]


def test_auto_never_shows_a_drafter_a_prompt_that_nobody_gave(tiny_target: Target) -> None:
    engine, prompts = Engine(tiny_target, None), [PROMPT, (9,)]
    right = [each.tokens for each in engine.generate_batch(prompts, FEW, PLAIN)]
    drafter = Careful(prompts)
    found = engine.generate_batch(prompts, FEW, drafter=drafter)
    assert [each.tokens for each in found] == right
    assert drafter.begun == prompts
    answers = dict(zip(prompts, right, strict=True))
    for make in (oracle, random_tree):
        probe = make(answers, tiny_target.vocab_size, depth=5)
        again = engine.generate_batch(prompts, FEW, drafter=probe)
        assert [each.tokens for each in again] == right


@pytest.mark.parametrize(("vocabulary", "context"), [(2, 256), (5, 64), (128, 3), (128, 2), (3, 4)])
def test_auto_fits_small_vocabularies_and_contexts(
    tiny_model: Callable[..., Any], vocabulary: int, context: int
) -> None:
    model = tiny_model("qwen3", vocab_size=vocabulary, max_position_embeddings=context)
    target = Target.from_model(model, taps=(0, 3))
    engine = Engine(target, _head(target, (0, 3)))
    right = engine.generate([1], FEW, PLAIN)
    assert engine.generate([1], FEW).tokens == right.tokens
    assert len(right.tokens) == min(4, context - 1)


def test_defaults_of_the_target_that_are_not_applied_are_told_once_by_name(
    tiny_model: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny_model("qwen3")
    model.generation_config.update(
        repetition_penalty=1.3, suppress_tokens=[4], bad_words_ids=[[5]], no_repeat_ngram_size=2,
        top_k=20, temperature=1.0, eos_token_id=7, num_beams=1, use_cache=True,
    )  # fmt: skip
    engine = Engine(Target.from_model(model), None)
    with caplog.at_level(logging.WARNING):
        engine.generate(PROMPT, FEW, PLAIN)
        engine.generate(PROMPT, FEW, PLAIN)
        Engine(Target.from_model(tiny_model("qwen3")), None).generate(PROMPT, FEW, PLAIN)
    told = [each for each in caplog.messages if "generation config" in each]
    assert len(told) == 1
    assert told[0].endswith(
        ": bad_words_ids = [[5]], no_repeat_ngram_size = 2, repetition_penalty = 1.3, "
        "suppress_tokens = [4]"
    )
