"""The law of a draw is the obvious one, and its noise depends on seed and position alone."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from jetflow_core import warp
from jetflow_core.noise import gumbel, uniforms
from jetflow_core.picker import TokenPicker
from jetflow_core.sampling import SamplingParams
from torch import Tensor
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

VOCAB = 12
PINNED_UNIFORMS = [2431714827741335, 7314196612716597, 7470288577578111]


def picker(
    prompt: Sequence[int] = (0,), eos: Sequence[int] = (), vocab: int = VOCAB, **fields: object
) -> TokenPicker:
    return TokenPicker(SamplingParams(**fields), prompt, eos, vocab)  # type: ignore[arg-type]


rows = st.lists(st.floats(-20, 20, width=32), min_size=VOCAB, max_size=VOCAB).map(torch.tensor)


# The law of a draw


def reference_law(row: Tensor, params: SamplingParams) -> list[float]:
    """The obvious law: sort, keep, renormalise, in plain Python."""
    top = max(row.tolist())
    scaled = [(x - top) / params.temperature for x in row.tolist()]
    weight = [math.exp(x) for x in scaled]
    # Logits may differ by so little that their weights are equal: the order is that of the logits.
    order = sorted(range(len(weight)), key=lambda i: (-scaled[i], i))
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
@example(
    row=torch.tensor([0.0] * 6 + [-1.4e-34] + [0.0] * 5), temperature=1.0, top_k=0, top_p=0.5,
    min_p=0.0,
)  # fmt: skip
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
    row = row.double() + torch.arange(VOCAB, dtype=torch.float64) * 1e-3
    # Of equal logits transformers keeps all, so that more than top_k can stay.
    assume(len(set(row.tolist())) == VOCAB)
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
