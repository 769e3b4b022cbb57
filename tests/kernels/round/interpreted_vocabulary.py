"""Interpreted, or on a CUDA device: the two passes over logits equal their references."""

from __future__ import annotations

import pytest
import torch
from jetflow_kernels.round import (
    depth_topk,
    depth_topk_reference,
    pick_argmax,
    pick_argmax_reference,
)
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device")


def logits_with_ties(rows: int, vocabulary: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rows * vocabulary)
    values = torch.randn(rows, vocabulary, generator=generator, device="cpu") * 3
    # Rounded to quarters: most of the greatest occur more than once.
    values = (values * 4).round() / 4
    values[0, 1::3] = -torch.inf
    values[-1] = 0.0
    values[-1, ::2] = -0.0
    return values.to(torch.get_default_device(), dtype)


@pytest.mark.parametrize(
    ("rows", "vocabulary", "count", "dtype"),
    [
        (3, 1, 1, torch.float32),
        (2, 37, 37, torch.float16),
        (3, 4097, 5, torch.float32),
        (2, 9000, 16, torch.bfloat16),
        (2, 128, 128, torch.bfloat16),
        (1, 5011, 128, torch.bfloat16),
        (1, 20011, 128, torch.float32),
    ],
)
def test_logits_with_ties(rows: int, vocabulary: int, count: int, dtype: torch.dtype) -> None:
    logits = logits_with_ties(rows, vocabulary, dtype)
    found, wanted = depth_topk(logits, count), depth_topk_reference(logits, count)
    assert torch.equal(found.tokens, wanted.tokens)
    torch.testing.assert_close(found.log_probs, wanted.log_probs, atol=2e-6, rtol=1e-6)
    torch.testing.assert_close(found.lse, wanted.lse, atol=2e-6, rtol=1e-6)
    assert (found.log_probs <= 0).all()
    picks, broken = pick_argmax(logits)
    assert torch.equal(picks, pick_argmax_reference(logits)[0])
    assert torch.equal(picks, wanted.tokens[:, 0])
    assert not broken.any()


def test_a_certain_token_is_not_above_certain() -> None:
    logits = torch.full((1, 5000), -200.0)
    logits[0, 4321] = 300.0
    found = depth_topk(logits, 2)
    assert found.tokens.tolist() == [[4321, 0]]
    assert found.log_probs.tolist() == [[0.0, -500.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_that_are_no_distribution_say_so_and_spare_the_others(dtype: torch.dtype) -> None:
    logits = logits_with_ties(5, 5000, dtype)
    logits[1, 4999] = torch.nan
    logits[2, 77] = torch.inf
    logits[3] = -torch.inf
    logits[0] = torch.nan
    found, wanted = depth_topk(logits, 3), depth_topk_reference(logits, 3)
    assert torch.equal(found.tokens, wanted.tokens)
    assert found.tokens[0].tolist() == [0, 1, 2]
    torch.testing.assert_close(found.log_probs, wanted.log_probs, equal_nan=True)
    torch.testing.assert_close(found.lse, wanted.lse, equal_nan=True)
    assert found.log_probs.isnan().all(1).tolist() == [True] * 4 + [False]
    out = torch.empty(5, dtype=torch.int64), torch.empty(5, dtype=torch.bool)
    picks, broken = pick_argmax(logits, out=out)
    assert picks is out[0]
    assert torch.equal(picks.int(), pick_argmax_reference(logits)[0])
    assert picks.tolist()[:4] == [0, int(wanted.tokens[1, 0]), 77, 0]
    assert broken.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_may_lie_apart(dtype: torch.dtype) -> None:
    wide = logits_with_ties(3, 4500, dtype)
    logits = wide[:, :4200]
    assert not logits.is_contiguous()
    assert torch.equal(pick_argmax(logits)[0], pick_argmax_reference(logits.clone())[0])
    assert torch.equal(depth_topk(logits, 4).tokens, depth_topk_reference(logits, 4).tokens)


def test_the_ops_declare_what_they_write() -> None:
    logits = logits_with_ties(2, 100, torch.float32)
    top = depth_topk_reference(logits, 3)
    picks, broken = pick_argmax_reference(logits)
    ops = torch.ops.jetflow_kernels
    for op, arguments in (
        (ops.depth_topk.default, (logits, top.tokens, top.log_probs, top.lse)),
        (ops.pick_argmax.default, (logits, picks, broken)),
    ):
        results = torch.library.opcheck(
            op, arguments, test_utils=("test_schema", "test_faketensor")
        )
        assert set(results.values()) == {"SUCCESS"}
