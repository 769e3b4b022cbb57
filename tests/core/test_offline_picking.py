"""Tokens drawn over blocks of the vocabulary are those of one sum over all of it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.offline.picking import BLOCK, pick_tokens, reference_pick
from torch import Tensor

SIZES = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 3)
# What float32 may move a border between two tokens, as a share of all mass.
ROUNDING = 2e-5


def _case(seed: int, vocabulary: int, rows: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    torch.manual_seed(seed)
    logits = (torch.randn(rows, vocabulary) * 4).to(dtype)
    impossible = torch.rand(rows, vocabulary) < 0.3
    impossible[:, seed % vocabulary] = False
    temperatures = 0.2 + torch.rand(rows) * 2
    temperatures[::3] = 0
    # Ends of the range, too: the first and the last token that can be drawn.
    uniforms = torch.rand(rows)
    uniforms[1::4], uniforms[2::4] = 0.0, 1 - 2**-24
    return logits.masked_fill(impossible, -torch.inf), temperatures, uniforms


def _borders(logits: Tensor, temperatures: Tensor) -> Tensor:
    """Cumulative probabilities [R, V + 1] in float64."""
    law = (logits.double() / temperatures.double().clamp(min=1e-3)[:, None]).softmax(-1)
    return torch.cat([torch.zeros(len(law), 1, dtype=torch.float64), law.cumsum(-1)], dim=1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), st.sampled_from(SIZES), st.integers(1, 9),
       st.sampled_from([torch.bfloat16, torch.float16, torch.float32, torch.float64]))  # fmt: skip
def test_they_are_those_of_the_reference(seed, vocabulary, rows, dtype):
    logits, temperatures, uniforms = _case(seed, vocabulary, rows, dtype)
    picked = pick_tokens(logits, temperatures, uniforms, sampled=True)
    want = reference_pick(logits, temperatures, uniforms)
    borders = _borders(logits, temperatures)
    near = ((borders - uniforms.double()[:, None]).abs() < ROUNDING).any(-1)
    assert torch.equal(picked[~near], want[~near])
    # Near a border it may be the neighbour, and nothing further.
    below, above = (borders.gather(1, (picked + i)[:, None])[:, 0] for i in (0, 1))
    drawn = temperatures > 0
    assert (below <= uniforms.double() + ROUNDING)[drawn].all()
    assert (above >= uniforms.double() - ROUNDING)[drawn].all()
    assert logits.gather(1, picked[:, None]).isfinite().all()
    assert torch.equal(picked[~drawn], logits.argmax(-1)[~drawn])


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 9999), st.sampled_from(SIZES))
def test_a_row_does_not_feel_the_others(seed, vocabulary):
    rows = _case(seed, vocabulary, 9, torch.bfloat16)
    together = pick_tokens(*rows, sampled=True)
    for row in range(9):
        alone = pick_tokens(*(each[row : row + 1] for each in rows), sampled=True)
        assert torch.equal(alone, together[row : row + 1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_share_of_the_uniforms_is_right(dtype):
    torch.manual_seed(0)
    logits = torch.randn(1, 3 * BLOCK + 5).to(dtype) * 3
    logits[0, ::3] = -torch.inf
    uniforms = torch.arange(1 << 15) / (1 << 15)
    wide, temperatures = logits.expand(len(uniforms), -1), torch.full((len(uniforms),), 0.7)
    picked = pick_tokens(wide, temperatures, uniforms, sampled=True)
    assert torch.equal(picked, picked.sort().values)
    shares = torch.bincount(picked, minlength=logits.shape[1]) / len(uniforms)
    law = (logits[0].double() / 0.7).softmax(-1)
    torch.testing.assert_close(shares.double(), law, atol=1 / len(uniforms) + ROUNDING, rtol=0)
    assert not shares[::3].any()


def test_many_masses_far_below_the_best_count_together():
    # And the draw falls on one of those that can be drawn.
    logits = torch.full((1, 2 * BLOCK), -torch.inf)
    logits[0, 0], logits[0, BLOCK + 1 :: 2] = 0.0, -18.0
    uniforms, ones = torch.tensor([1 - 2**-24]), torch.ones(1)
    picked = int(pick_tokens(logits, ones, uniforms, sampled=True))
    assert picked == int(reference_pick(logits, ones, uniforms))
    assert picked > BLOCK
    assert picked % 2 == 1


def test_broken_logits_stay_within_the_vocabulary():
    logits = torch.full((2, 300), torch.nan)
    picked = pick_tokens(logits, torch.ones(2), torch.tensor([0.0, 0.9]), sampled=True)
    assert ((picked >= 0) & (picked < 300)).all()
