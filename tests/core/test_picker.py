import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core import warp
from jetflow_core.noise import gumbel, uniforms
from jetflow_core.picker import (
    NoAllowedTokenError,
    NonFiniteLogitsError,
    TokenPicker,
    argmax_rows,
)
from jetflow_core.sampling import SamplingParams
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
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


# The law of a draw


def reference_law(row: Tensor, params: SamplingParams) -> list[float]:
    """The obvious law: sort, keep, renormalise, in plain Python."""
    top = max(row.tolist())
    weight = [math.exp((x - top) / params.temperature) for x in row.tolist()]
    order = sorted(range(len(weight)), key=lambda i: (-weight[i], i))
    if params.top_k:
        order = order[: params.top_k]
    total, kept, mass = sum(weight[i] for i in order), [], 0.0
    for i in order:
        kept.append(i)
        mass += weight[i] / total
        if mass >= params.top_p:
            break
    kept = [i for i in kept if weight[i] >= params.min_p * weight[kept[0]] * (1 - 1e-12)]
    total = sum(weight[i] for i in kept)
    return [weight[i] / total if i in kept else 0.0 for i in range(len(weight))]


LAWS = [
    {},
    {"temperature": 0.5},
    {"temperature": 1.7, "top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"temperature": 1.3, "top_k": 9, "top_p": 0.9, "min_p": 0.1},
]


@pytest.mark.parametrize("fields", LAWS)
def test_draws_follow_the_exact_law(fields: dict[str, float]) -> None:
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(1)) * 1.5
    params = SamplingParams(**{"temperature": 1.0, **fields}, seed=11)  # type: ignore[arg-type]
    expected = np.array(reference_law(row, params))
    chooser = TokenPicker(params, [0], [], VOCAB)
    np.testing.assert_allclose(chooser.probabilities(row, []).numpy(), expected, atol=1e-12)

    draws = 4000
    law = chooser._law(row)
    counts = np.bincount(
        [chooser._draw(law, position) for position in range(draws)], minlength=VOCAB
    )
    assert counts[expected == 0].sum() == 0
    possible = expected > 0
    wanted = expected[possible] * draws
    chi_square = float(((counts[possible] - wanted) ** 2 / wanted).sum())
    # 99.9 % quantiles of chi-square for 1 to 11 degrees of freedom.
    limits = [10.8, 13.8, 16.3, 18.5, 20.5, 22.5, 24.3, 26.1, 27.9, 29.6, 31.3]
    assert chi_square < limits[int(possible.sum()) - 2]


@settings(deadline=None, max_examples=60)
@given(
    row=rows,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, VOCAB + 3),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
def test_the_law_equals_the_obvious_one(
    row: Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    law = TokenPicker(params, [0], [], VOCAB).probabilities(row, [])
    wanted = torch.tensor(reference_law(row, params), dtype=torch.float64)
    # A cut that falls within rounding of a boundary may go either way.
    unsure = {VOCAB}
    for near in (1 - 1e-9, 1 + 1e-9):
        moved = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=min(top_p * near, 1.0),
            min_p=min(min_p * near, 1.0),
        )
        unsure.add(sum(p > 0 for p in reference_law(row, moved)))
    if int((law > 0).sum()) == int((wanted > 0).sum()):
        torch.testing.assert_close(law, wanted, atol=1e-9, rtol=0)
    else:
        assert int((law > 0).sum()) in unsure


@settings(deadline=None)
@given(row=rows, top_k=st.integers(1, VOCAB), top_p=st.floats(0.05, 0.95), min_p=st.floats(0.01, 1))
def test_each_cut_equals_that_of_transformers(
    row: Tensor, top_k: int, top_p: float, min_p: float
) -> None:
    row = (row + torch.arange(VOCAB) * 1e-3).double()
    ids = torch.zeros(1, 1, dtype=torch.int64)
    for ours, theirs in (
        (warp.keep_best(row, top_k), TopKLogitsWarper(top_k)),
        (warp.keep_nucleus(row, top_p), TopPLogitsWarper(top_p)),
        (warp.keep_probable(row, min_p), MinPLogitsWarper(min_p)),
    ):
        kept, wanted = ours.isfinite(), theirs(ids, row[None])[0].isfinite()
        if not torch.equal(kept, wanted):
            assert abs(int(kept.sum()) - int(wanted.sum())) == 1, "only a boundary may differ"
            assert not isinstance(theirs, TopKLogitsWarper)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.0, 0.1, 1.0, 8.0]),
    top_p=st.floats(0.01, 0.999),
)
def test_the_nucleus_of_a_large_vocabulary_is_that_of_a_full_sort(
    seed: int, scale: float, top_p: float
) -> None:
    row = torch.randn(5000, generator=torch.Generator().manual_seed(seed)).double() * scale
    kept = warp.keep_nucleus(row, top_p).isfinite()
    order = row.sort(descending=True, stable=True).indices
    mass = row.softmax(0)[order].cumsum(0)
    size = int((mass < top_p - 1e-12).sum()) + 1
    assert abs(int(kept.sum()) - size) <= 1
    assert kept[order[: int(kept.sum())]].all()


def test_a_flat_law_of_three_shows_all_three() -> None:
    row = torch.tensor([1.0, 1.0, 1.0])
    seen = {picker(vocab=3, temperature=1.0, seed=s).pick(row, []).token for s in range(300)}
    assert seen == {0, 1, 2}


def test_top_p_never_leaves_the_nucleus() -> None:
    row = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    seen = {
        picker(vocab=4, temperature=1.0, top_p=0.5, seed=seed).pick(row, [0] * depth).token
        for seed in range(100)
        for depth in range(5)
    }
    assert seen == {0, 1}


# Noise


def test_a_pick_depends_on_seed_and_position_and_on_nothing_seen_before() -> None:
    row = torch.zeros(64)
    chooser = picker(vocab=64, temperature=1.0, seed=9)
    alone = [picker(vocab=64, temperature=1.0, seed=9).pick(row, [1] * n).token for n in range(30)]
    backwards = [chooser.pick(row, [1] * n).token for n in reversed(range(30))][::-1]
    for rejected in range(50):
        chooser.pick(torch.randn(64), [2] * (rejected % 7))
    assert [chooser.pick(row, [3] * n).token for n in range(30)] == alone == backwards
    assert len(set(alone)) > 15
    other = [picker(vocab=64, temperature=1.0, seed=8).pick(row, [1] * n).token for n in range(30)]
    assert other != alone


def test_the_position_counts_the_prompt() -> None:
    row = torch.zeros(64)
    fields = {"vocab": 64, "temperature": 1.0, "seed": 4}
    long = picker(prompt=[1, 2, 3, 4], **fields).pick(row, [5])  # type: ignore[arg-type]
    short = picker(prompt=[1, 2], **fields).pick(row, [3, 4, 5])  # type: ignore[arg-type]
    assert long == short


def test_the_seed_in_use_reproduces_an_unseeded_request() -> None:
    row = torch.zeros(64)
    first = picker(vocab=64, temperature=1.0)
    again = picker(vocab=64, temperature=1.0, seed=first.seed)
    wanted = [first.pick(row, [0] * n).token for n in range(20)]
    assert [again.pick(row, [0] * n).token for n in range(20)] == wanted


def test_noise_is_pinned() -> None:
    # These values must hold on every machine and for ever, or a seed means nothing.
    np.testing.assert_array_equal((uniforms(1, 2, 3) * 2**53).astype(np.int64), PINNED_UNIFORMS)
    assert uniforms(2**64 - 1, 2**40, 4).shape == (4,)
    draw = uniforms(3, 5, 100_000)
    assert 0 < draw.min() and draw.max() < 1
    assert abs(draw.mean() - 0.5) < 0.005 and abs(draw.var() - 1 / 12) < 0.002
    ids = np.array([0, 7, 500, 999])
    np.testing.assert_array_equal(gumbel(3, 5, ids), -np.log(-np.log(draw[ids])))
    assert gumbel(3, 5, ids[:0]).shape == (0,)
    assert abs(np.corrcoef(uniforms(3, 6, 100_000), draw)[0, 1]) < 0.015


PINNED_UNIFORMS = [2431714827741335, 7314196612716597, 7470288577578111]


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
    with pytest.raises(NonFiniteLogitsError, match="row 1"):
        argmax_rows(torch.stack((torch.zeros(VOCAB), row)))
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
    with pytest.raises(NonFiniteLogitsError, match="-inf"):
        argmax_rows(torch.full((1, VOCAB), -math.inf))


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


def test_noise_moves_no_token_when_others_are_cut() -> None:
    # What survives a cut keeps its noise, so a narrower law changes a draw only if it must.
    row = torch.randn(VOCAB, generator=torch.Generator().manual_seed(3))
    for seed in range(100):
        free = picker(temperature=1.0, seed=seed).pick(row, []).token
        cut = picker(temperature=1.0, top_k=6, seed=seed)
        if cut.probabilities(row, [])[free] > 0:
            assert cut.pick(row, []).token == free


def test_a_greedy_law_is_one_token() -> None:
    law = picker(top_k=1, temperature=3.0, logit_bias={4: 9.0}).probabilities(
        torch.zeros(VOCAB), []
    )
    assert law.tolist() == [float(i == 4) for i in range(VOCAB)]
