"""Causal rows over pages: the reference against dense matrices, flash-attn against it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_kernels import prefill_attention, prefill_attention_reference
from jetflow_kernels.check import attention_prefill
from jetflow_kernels.check.batches import Shape, make_batch

NAMES = ("q", "k_pool", "v_pool", "page_table", "prefix_len")


def prompts(
    rows: list[int], prefixes: list[int], **shape: Any
) -> tuple[dict[str, Any], Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    """Arguments of a call and their dense answer."""
    batch = make_batch(rows, prefixes, Shape(masks=("chain",), **shape), "cpu")
    arguments = {name: batch.arguments[name] for name in NAMES}
    return {**arguments, "cu_rows": batch.arguments["cu_nodes"]}, batch.answer


@settings(max_examples=15, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 20)), min_size=1, max_size=4),
    page=st.sampled_from([3, 16]),
    heads=st.sampled_from([(2, 2), (6, 2)]),
)
def test_the_reference_is_dense_causal_attention(
    requests: list[tuple[int, int]], page: int, heads: tuple[int, int]
) -> None:
    rows, prefixes = (list(each) for each in zip(*requests, strict=True))
    arguments, answer = prompts(rows, prefixes, page=page, heads=heads, dim=8, dtype=torch.float64)
    lse = torch.empty(arguments["q"].shape[:2])
    got = prefill_attention_reference(**arguments, lse=lse)
    want, want_lse = answer()
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, want_lse.float(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"cu_rows": torch.tensor([0, 5], dtype=torch.int32)},
            "cu_rows must be .3. and page_table",
        ),
        ({"cu_rows": torch.tensor([0, 5, 4], dtype=torch.int32)}, r"must rise .* got \[0, 5, 4\]"),
        ({"cu_rows": torch.tensor([0, 5, 99], dtype=torch.int32)}, "at most the 10 rows of q"),
        ({"prefix_len": torch.tensor([3, -9], dtype=torch.int32)}, "prefix_len.* at least 0"),
    ],
)
def test_the_reference_names_wrong_values(change: dict[str, Any], said: str) -> None:
    arguments, _ = prompts([5, 2], [3, 0])
    with pytest.raises(ValueError, match=said):
        prefill_attention_reference(**{**arguments, **change})


def test_more_rows_than_words_can_name(flash: Any) -> None:
    arguments, _ = prompts([300, 0, 1, 70], [0, 4, 33, 60], page=128, finite_page=128)
    out, lse = torch.full_like(arguments["q"], torch.nan), torch.empty(arguments["q"].shape[:2])
    got = prefill_attention(**arguments, out=out, lse=lse, backend="flash")
    want_lse = torch.empty_like(lse)
    want = prefill_attention_reference(**arguments, lse=want_lse)
    assert got is out
    torch.testing.assert_close(got, want, rtol=0, atol=2e-3)
    torch.testing.assert_close(lse, want_lse, rtol=0, atol=1e-5)
    (call,) = flash.calls
    assert call["causal"] and "mask_mod" not in call and call["max_seqlen_q"] == 374
    assert call["seqused_k"].tolist() == [300, 4, 34, 130]


def test_the_list_holds(flash: Any) -> None:
    tasks = list(attention_prefill.tasks(["flash"], small=True))
    assert [sum(task.run("cpu")[0] for task in tasks)] == [4 * len(tasks)]
    assert not list(attention_prefill.tasks(["triton", "cuda"], small=True))


def test_what_is_wrong_is_named(flash: Any) -> None:
    arguments, _ = prompts([5], [3])
    call = partial(prefill_attention, **arguments, backend="flash")
    for change, said in (
        ({"scale": -1.0}, "scale must be finite and above 0, got -1.0"),
        ({"backend": "triton"}, "backend must be one of flash, got 'triton'"),
        ({"lse": torch.zeros(1)}, "lse must have shape"),
        ({"q": arguments["q"].float()}, "k_pool must be torch.float32"),
    ):
        with pytest.raises(ValueError, match=said):
            call(**change)
    assert not flash.calls
    meta = {name: tensor.to("meta") for name, tensor in arguments.items()}
    assert prefill_attention(**meta, backend="flash").shape == arguments["q"].shape
    single, _ = prompts([5], [3], dtype=torch.float32)
    with pytest.raises(ValueError, match=r"'flash' does not take .* q is torch.float32"):
        prefill_attention(**single, backend="flash")
