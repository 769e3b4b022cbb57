import math
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.picker import (
    NoAllowedTokenError,
    NonFiniteLogitsError,
    TokenPicker,
    argmax_rows,
)
from jetflow_core.sampling import SamplingParams
from torch import Tensor
from transformers import (
    RepetitionPenaltyLogitsProcessor,
)

VOCAB = 12


def picker(
    prompt: Sequence[int] = (0,), eos: Sequence[int] = (), vocab: int = VOCAB, **fields: object
) -> TokenPicker:
    return TokenPicker(SamplingParams(**fields), prompt, eos, vocab)  # type: ignore[arg-type]


rows = st.lists(st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB).map(torch.tensor)
tied_rows = st.lists(st.integers(-2, 2).map(float), min_size=VOCAB, max_size=VOCAB).map(
    torch.tensor
)
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=8)


# Greedy and ties


@settings(deadline=None)
@given(row=rows | tied_rows, history=tokens, seed=st.integers(0, 2**64 - 1))
def test_greedy_top_k_one_and_tiny_temperature_agree(
    row: Tensor, history: list[int], seed: int
) -> None:
    first_best = row.tolist().index(max(row.tolist()))
    greedy = picker().pick(row, history)
    assert greedy.token == first_best
    assert picker(temperature=1.0, top_k=1, seed=seed).pick(row, history).token == first_best
    assert argmax_rows(row[None]) == [first_best]
    if row.tolist().count(max(row.tolist())) == 1:
        cold = picker(temperature=1e-300, seed=seed).pick(row, history)
        assert cold.token == first_best


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [3, 129, 49_152])
def test_of_equal_logits_the_lowest_id_wins(dtype: torch.dtype, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randint(0, 3, (4, vocab), generator=generator).to(dtype)
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert argmax_rows(logits) == expected
    greedy = picker(vocab=vocab)
    assert [greedy.pick(row, []).token for row in logits] == expected


def test_plain_argmax_is_claimed_only_when_nothing_else_is_asked() -> None:
    assert picker(top_p=0.5, min_p=0.3, seed=3, stop_token_ids=(2,)).plain_argmax
    assert picker(top_k=1, temperature=2.0).plain_argmax
    assert picker(min_new_tokens=3).plain_argmax, "nothing can stop, so nothing is forbidden"
    for fields in (
        {"temperature": 0.1},
        {"repetition_penalty": 1.1},
        {"frequency_penalty": 0.1},
        {"presence_penalty": -0.1},
        {"logit_bias": {1: 1.0}},
        {"bad_words": ((1,),)},
        {"min_new_tokens": 1, "stop_token_ids": (2,)},
        {"logprobs": 0},
        {"logits_processor": lambda prompt, generated, row: row},
    ):
        assert not picker(**fields).plain_argmax, fields


def test_float64_logits_are_not_rounded() -> None:
    row = torch.zeros(VOCAB, dtype=torch.float64)
    row[7] = 1e-12
    assert picker().pick(row, []).token == 7
    assert argmax_rows(row[None]) == [7]


# Penalties, bias, forbidden tokens


def slow_penalties(
    row: Sequence[float],
    prompt: Sequence[int],
    generated: Sequence[int],
    params: SamplingParams,
) -> list[float]:
    out = []
    for token, logit in enumerate(row):
        if token in prompt or token in generated:
            factor = params.repetition_penalty
            logit = logit / factor if logit > 0 else logit * factor
        count = sum(1 for other in generated if other == token)
        logit -= params.frequency_penalty * count
        logit -= params.presence_penalty * (1 if count else 0)
        out.append(logit)
    return out


@settings(deadline=None)
@given(
    row=rows,
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
    generated=tokens,
    repetition=st.floats(0.2, 3),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
)
def test_penalties_equal_the_obvious_ones(
    row: Tensor,
    prompt: list[int],
    generated: list[int],
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    params = SamplingParams(
        repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence
    )
    law = TokenPicker(params, prompt, [], VOCAB)._processed(row.double(), generated)
    wanted = torch.tensor(slow_penalties(row.tolist(), prompt, generated, params)).double()
    torch.testing.assert_close(law, wanted, atol=1e-5, rtol=1e-5)


@settings(deadline=None)
@given(
    row=rows, generated=st.lists(st.integers(0, VOCAB - 1), min_size=1), factor=st.floats(0.2, 3)
)
def test_repetition_penalty_equals_that_of_transformers(
    row: Tensor, generated: list[int], factor: float
) -> None:
    theirs = RepetitionPenaltyLogitsProcessor(factor)(torch.tensor([[3, *generated]]), row[None])
    ours = picker(prompt=[3], repetition_penalty=factor)._processed(row, generated)
    torch.testing.assert_close(ours, theirs[0])


def test_penalties_change_a_greedy_text_and_follow_the_path() -> None:
    row = torch.tensor([2.0, 1.5, 1.0, 0.0])
    texts = {}
    for penalty in (-2.0, 0.0, 2.0):
        chooser = picker(vocab=4, frequency_penalty=penalty)
        text: list[int] = []
        for _ in range(5):
            text.append(chooser.pick(row, text).token)
        texts[penalty] = text
    assert texts == {-2.0: [0] * 5, 0.0: [0] * 5, 2.0: [0, 1, 2, 0, 3]}
    chooser = picker(vocab=4, frequency_penalty=2.0)
    assert chooser.pick(row, [0]).token == 1
    assert chooser.pick(row, [1]).token == 0


def test_logit_bias_moves_the_pick() -> None:
    row = torch.tensor([2.0, 1.0, 0.0, 0.0])
    assert picker(vocab=4, logit_bias={2: 5.0, 0: -1.0}).pick(row, []).token == 2
    assert picker(vocab=4, logit_bias={0: -100.0}).pick(row, []).token == 1


def test_only_the_last_token_of_a_bad_word_is_forbidden_after_its_beginning() -> None:
    row = torch.tensor([3.0, 2.0, 1.0, 0.0])
    chooser = picker(prompt=[2, 3], vocab=4, bad_words=((0,), (2, 3, 1), (1, 1)))
    assert chooser.pick(row, []).token == 1
    assert chooser.pick(row, [3]).token == 1, "a word that began in the prompt is not the answer's"
    assert chooser.pick(row, [2, 3]).token == 2
    assert chooser.pick(row, [2, 3, 3]).token == 1
    assert chooser.pick(row, [1]).token == 2


def test_stopping_ids_are_forbidden_before_min_new_tokens() -> None:
    row = torch.tensor([3.0, 2.0, 1.0, 0.0])
    fields = {"vocab": 4, "min_new_tokens": 2, "stop_token_ids": (1,)}
    chooser = picker(eos=[0], **fields)  # type: ignore[arg-type]
    assert [chooser.pick(row, [3] * n).token for n in range(4)] == [2, 2, 0, 0]
    free = picker(eos=[0], ignore_eos=True, **fields)  # type: ignore[arg-type]
    assert [free.pick(row, [3] * n).token for n in range(3)] == [0, 0, 0]


# A user's processor


def ab_star_c(prompt: Sequence[int], generated: Sequence[int], row: Tensor) -> Tensor:
    """Allows the language (ab)*c with a = 1, b = 2, c = 3, then end = 0."""
    del prompt
    if generated and generated[-1] == 3:
        allowed = [0]
    else:
        allowed = [2] if generated and generated[-1] == 1 else [1, 3]
    keep = row[allowed].clone()
    row.fill_(-math.inf)
    row[allowed] = keep
    return row


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_is_kept_for_a_thousand_rows_with_rejected_branches(temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = set()
    for request in range(40):
        chooser = picker(vocab=6, temperature=temperature, seed=request, logits_processor=ab_star_c)
        text: list[int] = []
        while not text or text[-1] != 0:
            row = torch.randn(6, generator=generator)
            before = row.clone()
            for branch in ([1], [1, 2], [1, 2, 3], [1, 2, 1]):
                chooser.pick(row, text + branch if not text or text[-1] == 2 else branch)
            text.append(chooser.pick(row, text).token)
            assert torch.equal(row, before), "the engine's row must not be changed"
        assert text[-2:] == [3, 0] and text[:-2] == [1, 2] * ((len(text) - 2) // 2)
        lengths.add(len(text))
    assert len(lengths) > 2


def test_no_later_step_revives_what_the_processor_forbade() -> None:
    def only_two(prompt: Sequence[int], generated: Sequence[int], row: Tensor) -> Tensor:
        mask = torch.full_like(row, -math.inf)
        mask[2] = row[2]
        return mask

    chooser = picker(
        logits_processor=only_two,
        logit_bias={1: 1000.0},
        repetition_penalty=0.1,
        frequency_penalty=-2.0,
        presence_penalty=-2.0,
        temperature=5.0,
    )
    assert {chooser.pick(torch.zeros(VOCAB), [1] * n).token for n in range(20)} == {2}


def test_a_processor_sees_raw_logits_and_its_own_history() -> None:
    calls = []

    def spy(prompt: Sequence[int], generated: Sequence[int], row: Tensor) -> Tensor:
        calls.append((tuple(prompt), tuple(generated), row.dtype, float(row[1])))
        return row

    chooser = picker(prompt=[5, 6], logits_processor=spy, logit_bias={1: 3.0})
    chooser.pick(torch.ones(VOCAB, dtype=torch.bfloat16), [7])
    assert calls == [((5, 6), (7,), torch.float32, 1.0)]


# Logprobs


@settings(deadline=None)
@given(row=rows, history=tokens, count=st.integers(0, VOCAB), temperature=st.sampled_from([0, 1.5]))
def test_logprobs_are_log_softmax_of_the_raw_row(
    row: Tensor, history: list[int], count: int, temperature: float
) -> None:
    pick = picker(
        temperature=temperature, seed=1, logprobs=count, logit_bias={4: 3.0}, presence_penalty=1.0
    ).pick(row.double(), history)
    wanted = row.double().log_softmax(0).tolist()
    assert pick.logprob == pytest.approx(wanted[pick.token], abs=1e-9)
    assert pick.top_logprobs is not None
    best = sorted(range(VOCAB), key=lambda i: (-row[i].item(), i))[:count]
    assert [i for i, _ in pick.top_logprobs] == best
    assert [p for _, p in pick.top_logprobs] == pytest.approx([wanted[i] for i in best], abs=1e-9)


def test_logprobs_are_left_out_unless_asked_for_and_hold_impossible_tokens() -> None:
    row = torch.full((VOCAB,), -math.inf)
    row[3] = 0.0
    assert picker().pick(row, []).logprob is None
    pick = picker(logprobs=2).pick(row, [])
    assert pick.top_logprobs == ((3, 0.0), (0, -math.inf))


# Errors


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    row = torch.zeros(VOCAB)
    row[5] = value
    for fields in ({}, {"temperature": 1.0}):
        with pytest.raises(NonFiniteLogitsError, match="a row of logits"):
            picker(**fields).pick(row, [])
    assert argmax_rows(torch.stack((torch.zeros(VOCAB), row))) == [0, None]
    with pytest.raises(NonFiniteLogitsError, match="logits_processor"):
        picker(logits_processor=lambda p, g, r: row).pick(torch.zeros(VOCAB), [])


def test_a_dead_end_is_named() -> None:
    nothing: Callable[..., Tensor] = lambda p, g, r: torch.full_like(r, -math.inf)  # noqa: E731
    for temperature in (0.0, 1.0):
        with pytest.raises(NoAllowedTokenError, match=r"after 2 generated.*logits_processor"):
            picker(temperature=temperature, logits_processor=nothing).pick(
                torch.zeros(VOCAB), [1, 2]
            )
    with pytest.raises(NoAllowedTokenError, match="bad_words, min_new_tokens"):
        picker(vocab=2, eos=[0], min_new_tokens=1, bad_words=((1,),)).pick(torch.zeros(2), [])
    with pytest.raises(NoAllowedTokenError, match="every logit of the target"):
        picker().pick(torch.full((VOCAB,), -math.inf), [])
    assert argmax_rows(torch.full((1, VOCAB), -math.inf)) == [None]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ({"bad_words": ((1, VOCAB),)}, "bad_words"),
        ({"stop_token_ids": (VOCAB,)}, "stop_token_ids"),
        ({"prompt": [VOCAB]}, "prompt"),
        ({"eos": [-1]}, "eos_ids"),
        ({"logprobs": VOCAB + 1}, "logprobs"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(fields: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        picker(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(VOCAB + 1,), (1, VOCAB)])
def test_a_row_of_the_wrong_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="row of logits must be"):
        picker().pick(torch.zeros(shape), [])
    with pytest.raises(ValueError, match="logits_processor must return"):
        picker(logits_processor=lambda p, g, r: torch.zeros(shape)).pick(torch.zeros(VOCAB), [])
