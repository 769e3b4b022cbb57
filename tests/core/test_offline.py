"""Offline decoding: each answer is what the target alone would write, whatever its neighbours."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.offline import Job, MaskedAttention, RowDecoder
from jetflow_core.offline.attention import reference_attention
from jetflow_core.offline.picking import pick_tokens

VOCABULARY, LAYERS, HEADS, KV_HEADS, DIM = 40, 2, 4, 2, 8
STOPS = (3, 9, 17, 20, 31)
MOST = 9


class TinyStack:
    """A random decoder without norms, in float64 so that rounding decides nothing."""

    num_layers, num_kv_heads, head_dim, max_positions = LAYERS, KV_HEADS, DIM, 96
    stop_tokens = STOPS
    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self) -> None:
        torch.manual_seed(0)
        width = HEADS * DIM

        def matrix(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, dtype=torch.float64) / rows**0.5

        self.table = torch.randn(VOCABULARY, width, dtype=torch.float64)
        self.mixed = [matrix(width, width + 2 * KV_HEADS * DIM) for _ in range(LAYERS)]
        self.out = [matrix(width, width) for _ in range(LAYERS)]

    def embed(self, tokens):
        return self.table[tokens]

    def rope(self, positions):
        angles = positions[:, None, :, None] * torch.arange(1, DIM + 1, dtype=torch.float64) / 7
        return angles.cos(), angles.sin()

    def project(self, layer, x, rope):
        heads = (x @ self.mixed[layer]).unflatten(-1, (-1, DIM)).transpose(1, 2)
        q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
        return q * rope[0] + q.flip(-1) * rope[1], k * rope[0] + k.flip(-1) * rope[1], v

    def finish(self, layer, x, attended):
        return x + (attended @ self.out[layer]).tanh()

    def logits(self, x):
        return 4.0 * (x @ self.table.T) / self.table.shape[1] ** 0.5


STACK = TinyStack()


def alone(job: Job) -> list[int]:
    """The answer from whole passes over the text so far, with the textbook's attention."""
    text, new = list(job.prompt), []
    for step in range(MOST):
        tokens = torch.tensor([text])
        rope = STACK.rope(torch.arange(len(text))[None])
        x = STACK.embed(tokens)
        for layer in range(LAYERS):
            q, k, v = (t[0] for t in STACK.project(layer, x, rope))
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=0) for t in (k, v))
            scores = q @ k.transpose(1, 2) / DIM**0.5
            scores = scores.masked_fill(torch.ones(len(text), len(text)).triu(1).bool(), -torch.inf)
            x = STACK.finish(layer, x, (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)[None])
        logits = STACK.logits(x[0, -1])
        if job.temperature:
            mass = (logits.float() / job.temperature).softmax(-1).cumsum(-1)
            token = int((mass <= job.uniforms[step] * mass[-1]).sum())
        else:
            token = int(logits.argmax())
        text.append(token)
        new.append(token)
        if token in STOPS:
            break
    return new


def jobs(count: int, seed: int) -> list[Job]:
    rng = np.random.default_rng(seed)
    return [
        Job(
            number=number,
            prompt=rng.integers(4, VOCABULARY, size=rng.integers(1, 70)),
            temperature=float(rng.choice([0.0, 0.7, 1.3])),
            uniforms=rng.random(MOST, dtype=np.float32),
        )
        for number in range(count)
    ]


def decoder(rows: int, check_every: int = 8, refill: int = 1) -> RowDecoder:
    return RowDecoder(
        STACK, MaskedAttention(), rows=rows, capacity=80, max_new_tokens=MOST,
        check_every=check_every, refill=refill,
    )  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 999), st.integers(0, 7), st.integers(1, 5), st.integers(1, 12),
       st.integers(1, 9))  # fmt: skip
def test_every_answer_is_what_the_target_alone_writes(seed, count, rows, check_every, refill):
    asked = jobs(count, seed)
    answers = list(decoder(rows, check_every, refill).answer(asked))
    assert sorted(answer.number for answer in answers) == list(range(count))
    for answer in answers:
        assert answer.tokens.tolist() == alone(asked[answer.number])
        assert answer.finished == (answer.tokens[-1] in STOPS)


def test_answers_of_both_endings_were_among_them():
    answers = list(decoder(4).answer(jobs(12, 1)))
    assert {answer.finished for answer in answers} == {True, False}
    assert max(len(answer.tokens) for answer in answers) == MOST


def test_jobs_are_taken_as_rows_become_free():
    taken: list[int] = []

    def asked() -> Iterator[Job]:
        for job in jobs(9, 2):
            taken.append(job.number)
            yield job

    ahead = [len(taken) - done for done, _ in enumerate(decoder(3).answer(asked()))]
    assert taken == list(range(9))
    assert max(ahead) <= 3


def test_a_call_that_ends_late_takes_no_rows_from_the_next():
    rows, asked = decoder(3, check_every=2), jobs(9, 3)
    left, late = rows.answer(asked), rows.answer(asked)
    next(left)
    next(late)
    now = rows.answer(asked)
    found = [next(now).number for _ in range(4)]
    left.close()
    with pytest.raises(RuntimeError, match="answer other jobs by now"):
        next(late)
    found += [answer.number for answer in now]
    assert sorted(found) == list(range(9))


def test_a_decoder_left_in_the_middle_starts_afresh():
    rows = decoder(2, check_every=2)
    asked = jobs(5, 3)
    next(iter(rows.answer(asked)))
    again = {answer.number: answer.tokens.tolist() for answer in rows.answer(asked)}
    assert again == {job.number: alone(job) for job in asked}


def test_what_does_not_fit_is_refused_by_name():
    def job(**changes) -> Job:
        fields = {"number": 7, "prompt": np.arange(4, 9), "temperature": 0.7,
                  "uniforms": np.zeros(MOST, np.float32)}  # fmt: skip
        return Job(**{**fields, **changes})

    for bad, message in (
        (job(prompt=np.full(72, 5)), "job 7: a prompt of 72 and 9 new tokens exceed .* of 80"),
        (job(uniforms=np.zeros(2, np.float32)), "job 7 brings 2 random numbers for 9 new tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            list(decoder(2).answer([bad]))
    with pytest.raises(ValueError, match="job 7 has an empty prompt"):
        job(prompt=np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="job 7 has temperature -1"):
        job(temperature=-1.0)
    with pytest.raises(ValueError, match="need 97 positions, the target has 96"):
        RowDecoder(STACK, MaskedAttention(), rows=1, capacity=97, max_new_tokens=1)
    with pytest.raises(ValueError, match="check_every must be at least 1, got 0"):
        decoder(1, check_every=0)


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (9, 3), (5, 1)])
def test_attention_equals_its_reference(heads):
    torch.manual_seed(1)
    queries = torch.randn(4, heads[0], 8, dtype=torch.float64)
    keys, values = torch.randn(2, 4, 20, heads[1], 8, dtype=torch.float64)
    lengths = torch.tensor([1, 7, 12, 20], dtype=torch.int32)
    want = reference_attention(queries, keys, values, lengths)
    torch.testing.assert_close(MaskedAttention()(queries, keys, values, lengths, 20), want)
    # Nothing behind a row's length is read.
    for row, length in enumerate(lengths.tolist()):
        keys[row, length:], values[row, length:] = 1e6, 0.0
    torch.testing.assert_close(MaskedAttention()(queries, keys, values, lengths, 20), want)


def test_picked_tokens_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]]).expand(4000, -1)
    uniforms = torch.arange(4000) / 4000
    picked = pick_tokens(logits, torch.full((4000,), 0.5), uniforms, sampled=True)
    shares = torch.bincount(picked, minlength=4) / 4000
    torch.testing.assert_close(shares, (logits[0] / 0.5).softmax(-1), atol=1e-3, rtol=0)
    greedy = pick_tokens(logits, torch.zeros(4000), uniforms, sampled=True)
    assert greedy.eq(2).all()
    assert pick_tokens(logits, torch.zeros(4000), uniforms, sampled=False).eq(2).all()
