"""Tree attention through flash-attn, its kernel played by a stand-in, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention, tree_attention_reference
from jetflow_kernels.check import attention_bits, attention_graphs, attention_values
from jetflow_kernels.check.batches import Shape
from jetflow_kernels.check.promises import PROMISES

ATOL = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Nodes, prefixes, page, heads, dim, type, mask, packed layout.
CASES: list[tuple[Any, ...]] = [
    ((1,), (0,), 16, (1, 1), 64, torch.bfloat16, "random", False),
    ((5, 0, 3, 1), (130, 7, 0, 64), 48, (6, 2), 64, torch.float16, "random", True),
    ((70, 2), (61, 200), 256, (2, 1), 64, torch.bfloat16, "shuffled", False),
    ((33, 64), (16, 15), 16, (4, 1), 128, torch.float16, "caterpillar", True),
    ((200, 1, 130), (3, 40, 0), 32, (2, 2), 64, torch.float16, "random", False),
    ((256, 17), (1, 5), 64, (3, 1), 64, torch.bfloat16, "binary", False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_reference(make_batch: Callable[..., Any], flash: Any, case: Any) -> None:
    nodes, prefixes, page, heads, dim, dtype, mask, packed = case
    batch = make_batch(nodes, prefixes, page=page, heads=heads, dim=dim, dtype=dtype, mask=mask)
    arguments = dict(batch.arguments)
    if packed:
        both = torch.cat([batch.k_pool, batch.v_pool], dim=-1).transpose(1, 2).contiguous()
        arguments["k_pool"], arguments["v_pool"] = (
            half.transpose(1, 2) for half in both.split(dim, dim=-1)
        )
    out = torch.full_like(batch.q, torch.nan)
    lse = torch.full(batch.q.shape[:2], torch.nan)
    got = tree_attention(**arguments, out=out, lse=lse, backend="flash")
    want_lse = torch.empty(batch.q.shape[:2])
    want = tree_attention_reference(**arguments, lse=want_lse)
    assert got is out
    torch.testing.assert_close(got, want, rtol=0, atol=ATOL[dtype])
    torch.testing.assert_close(lse, want_lse, rtol=0, atol=1e-5)
    assert not got[sum(nodes) :].any() and torch.isneginf(lse[sum(nodes) :]).all()


def test_what_flash_attn_is_given(make_batch: Callable[..., Any], flash: Any) -> None:
    batch = make_batch((5, 0, 70), (9, 3, 64), dim=64, dtype=torch.float16)
    # Strides of a graph's larger tensors, and a table that is a slice of one.
    ancestors = torch.cat([batch.ancestors, batch.ancestors], dim=1)[:, :2]
    lengths = torch.stack([batch.prefix_len, batch.prefix_len], dim=1)[:, 0]
    given = {**batch.arguments, "ancestors": ancestors, "prefix_len": lengths}
    tree_attention(**given, scale=0.25, backend="flash")
    (call,) = flash.calls
    assert call["k"].data_ptr() == batch.k_pool.data_ptr()
    assert call["v"].data_ptr() == batch.v_pool.data_ptr()
    assert call["cu_seqlens_q"].tolist() == [0, 5, 5, 75]
    assert call["seqused_k"].tolist() == [14, 3, 134]
    # Of a request, by the words; not of the whole batch with its padding.
    assert (call["max_seqlen_q"], call["softmax_scale"]) == (78, 0.25)
    assert torch.equal(call["page_table"], batch.page_table)
    (words,) = call["aux_tensors"]
    assert (words.dtype, words.shape) == (torch.int32, (78, 4)) and words.is_contiguous()
    low = ancestors[5, 0].item() & 0xFFFFFFFF
    assert words[5, 0].item() & 0xFFFFFFFF == low and not call["return_lse"]
    short = {**batch.arguments, "ancestors": batch.ancestors[:, :1]}
    tree_attention(**{**short, "cu_nodes": batch.cu_nodes.clamp(max=64)}, backend="flash")
    assert flash.calls[1]["max_seqlen_q"] == 64


def test_every_bit_of_four_words(make_batch: Callable[..., Any], flash: Any) -> None:
    batch = make_batch((256,), (2,), heads=(1, 1), dim=64, dtype=torch.float16, padding=0)
    before = tree_attention(**batch.arguments, backend="flash")
    for row, column in ((255, 31), (253, 63), (250, 255)):
        words = batch.ancestors.clone()
        word, bit = divmod(column, 64)
        words[row, word] ^= (1 << bit) if bit < 63 else -(1 << 63)
        after = tree_attention(**{**batch.arguments, "ancestors": words}, backend="flash")
        changed = (after != before).flatten(1).any(1).nonzero().flatten().tolist()
        assert changed == [row]


def test_bits_past_the_last_row_are_ignored(make_batch: Callable[..., Any], flash: Any) -> None:
    batch = make_batch((5,), (9,), dim=64, dtype=torch.float16)
    want = tree_attention(**batch.arguments, backend="flash")
    beyond = batch.ancestors | (-1 << 5)
    got = tree_attention(**{**batch.arguments, "ancestors": beyond}, backend="flash")
    assert torch.equal(got, want)


def test_no_rows_and_no_requests(make_batch: Callable[..., Any], flash: Any) -> None:
    batch = make_batch((2,), (3,), dim=64, dtype=torch.float16, padding=0)
    nobody = {
        **batch.arguments,
        "page_table": batch.page_table[:0],
        "cu_nodes": batch.cu_nodes[:1],
        "prefix_len": batch.prefix_len[:0],
    }
    lse = torch.zeros(2, 4)
    got = tree_attention(**nobody, lse=lse, backend="flash")
    assert not got.any() and torch.isneginf(lse).all()
    nothing = {**nobody, "q": batch.q[:0], "ancestors": batch.ancestors[:0]}
    assert tree_attention(**nothing, backend="flash").shape == (0, 4, 64)
    assert not flash.calls


@pytest.mark.parametrize("page", [16, 128])
def test_the_lists_hold_for_it(flash: Any, page: int) -> None:
    """The lists of the check program, on the stand-in: their own code is what is tried here."""
    shape = Shape(page=page, heads=(2, 1), finite_page=PROMISES["flash"].finite_page)
    held = [
        attention_bits.equal_shapes(
            "cpu", backend="flash", shape=replace(shape, padding=0), rows=3, prefixes=(130, 0)
        ),
        attention_bits.pages_change_nothing(
            "cpu", backend="flash", shape=shape, nodes=(3, 2), prefixes=(14, 17), pages=(page,)
        ),
        attention_bits.branches_apart("cpu", backend="flash", shape=shape, rows=9, prefix=20),
        attention_bits.padding_and_later_rows("cpu", backend="flash", shape=shape),
        attention_graphs.replays(
            "cpu", backend="flash", shape=shape, rounds=attention_graphs.SMALL_ROUNDS
        ),
        attention_values.strided_queries("cpu", backend="flash", shape=shape),
        attention_values.chains_are_causal("cpu", backend="flash", shape=shape),
        attention_values.refusals("cpu", backend="flash"),
    ]
    assert all(checks > 0 for checks, _ in held)
