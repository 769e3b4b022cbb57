"""Prompts packed into passes of one shape: padding and neighbours change no answer."""

import sys
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.documents import separate_attention
from jetflow_core.offline import Job, MaskedAttention, RowDecoder, rows
from jetflow_core.offline.passes import PassInputs, PassShape, cut_into_passes

CPU = torch.device("cpu")
SPARE, NEW = 99, 3


def jobs_of(lengths):
    rng = np.random.default_rng(len(lengths))
    return [
        Job(
            number=number,
            prompt=rng.integers(1, 50, size=length),
            temperature=float(number % 2),
            uniforms=rng.random(NEW + number % 3, dtype=np.float32),
        )
        for number, length in enumerate(lengths)
    ]


@given(st.lists(st.integers(1, 10), min_size=1, max_size=30), st.integers(10, 40),
       st.integers(1, 6))  # fmt: skip
def test_passes_hold_all_jobs_whole_and_in_order(lengths, tokens, places):
    jobs = jobs_of(lengths)
    parts = list(cut_into_passes(jobs, tokens, places))
    assert [job.number for part in parts for job in part] == list(range(len(jobs)))
    for part, following in pairwise([*parts, []]):
        used = sum(len(job.prompt) for job in part)
        assert used <= tokens and len(part) <= places
        if following:
            full = used + len(following[0].prompt) > tokens or len(part) == places
            assert full


@given(st.lists(st.integers(1, 10), min_size=1, max_size=6), st.integers(0, 35))
def test_inputs_say_of_each_token_whose_it_is(lengths, padding):
    jobs, used = jobs_of(lengths), sum(lengths)
    shape = PassShape(tokens=used + padding, places=7, longest=10, new_tokens=NEW)
    inputs = PassInputs.empty(shape, CPU)
    inputs.fill(jobs, np.arange(len(jobs)) + 20, SPARE)
    for at, (job, start) in enumerate(zip(jobs, inputs.starts.tolist(), strict=False)):
        here = inputs.rows == 20 + at
        assert inputs.tokens[here].tolist() == job.prompt.tolist()
        assert inputs.positions[here].tolist() == list(range(len(job.prompt)))
        assert start == int(here.nonzero()[0])
        assert int(inputs.last[at]) == start + len(job.prompt) - 1
        wanted = job.uniforms[:NEW] if job.temperature else np.zeros(NEW)
        assert inputs.uniforms[at].tolist() == wanted.tolist()
    assert inputs.places.tolist() == [*range(20, 20 + len(jobs)), *[SPARE] * (7 - len(jobs))]
    assert inputs.temperatures.tolist() == [*(i % 2 for i in range(len(jobs))),
                                            *[0] * (7 - len(jobs))]  # fmt: skip
    # Padding is documents like others, none longer than the longest prompt, in the spare row.
    assert int((inputs.rows == SPARE).sum()) == padding
    sizes = inputs.starts.diff()
    assert int(inputs.starts[-1]) == shape.tokens
    assert int(sizes.min()) >= 0
    assert int(sizes.max()) <= shape.longest
    # A view of the same buffer elsewhere reads the same.
    copied = PassInputs(shape, inputs.flat.clone())
    assert torch.equal(copied.uniforms, inputs.uniforms)


class OneLayer:
    """A decoder whose answers depend on all keys that a row sees."""

    num_layers, num_kv_heads, head_dim, max_positions = 1, 1, 8, 64
    stop_tokens, device, dtype = (3, 7), CPU, torch.float64

    def __init__(self):
        torch.manual_seed(0)
        self.table = torch.randn(30, 16, dtype=torch.float64)
        self.mixed = torch.randn(16, 32, dtype=torch.float64)

    def embed(self, tokens):
        return self.table[tokens]

    def rope(self, positions):
        return positions[:, None, :, None].double(), positions

    def project(self, layer, x, rope):
        heads = (x @ self.mixed).unflatten(-1, (-1, 8)).transpose(1, 2)
        q, k, v = heads.split([2, 1, 1], dim=1)
        return q, k + rope[0].sin(), v

    def finish(self, layer, x, attended):
        return x + attended

    def logits(self, x):
        return x @ self.table.T


def answered(jobs, refill=1):
    decoder = RowDecoder(
        OneLayer(), MaskedAttention(), rows=9, capacity=18, max_new_tokens=8, refill=refill
    )
    return {each.number: each.tokens.tolist() for each in decoder.answer(jobs)}


def varlen_attn(q, k, v, starts, same, *longest, window_size):
    """Torch's, which a CPU does not have."""
    assert same is starts and starts.dtype == torch.int32
    assert longest == (10, 10) and window_size == (-1, 0)
    assert int(starts.diff().max()) <= 10
    own = (x.transpose(0, 1)[None] for x in (q, k, v))
    return separate_attention(*own, starts.tolist())[0].unflatten(-1, q.shape[1:])


@pytest.mark.parametrize("refill", [1, 5])
def test_a_padded_pass_answers_like_prompts_by_themselves(monkeypatch, refill):
    rng = np.random.default_rng(0)
    jobs = [
        Job(number, rng.integers(8, 30, size=rng.integers(1, 11)), 0.7 * (number % 2),
            rng.random(8, dtype=np.float32))
        for number in range(60)
    ]  # fmt: skip
    alone = {job.number: answered([job])[job.number] for job in jobs}
    assert len({len(tokens) for tokens in alone.values()}) > 2
    module = ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = varlen_attn
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert answered(jobs, refill) == alone
    for tokens in (10, 33):
        with monkeypatch.context() as patch:
            patch.setattr(rows, "packs_documents", lambda *_: True)
            patch.setattr(rows, "PASS_TOKENS", tokens)
            assert answered(jobs, refill) == alone


def test_a_capacity_without_room_for_a_prompt_is_refused():
    with pytest.raises(ValueError, match=r"capacity of 8 leaves no room .* 8 new tokens"):
        RowDecoder(OneLayer(), MaskedAttention(), rows=1, capacity=8, max_new_tokens=8)
