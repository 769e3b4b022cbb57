"""The reference equals a dense float64 computation at every odd size, and reads nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_kernels import tree_attention_reference

MakeBatch = Callable[..., Any]

# (nodes of each tree, prefix of each request): 64-bit borders, page borders, N = 1, no prefix.
RAGGED = (
    ((1,), (0,)),
    ((1, 1, 1), (1, 16, 17)),
    ((2, 15, 16, 17), (15, 16, 63, 65)),
    ((63, 1, 65), (0, 8, 31)),
    ((64, 128), (1, 64)),
    ((127, 129), (7, 0)),
    ((255, 3), (17, 3)),
    ((256,), (9,)),
    ((21, 0, 7), (44, 3, 17)),
)
ATOL = {
    torch.float64: 1e-12,
    torch.float32: 2e-6,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


@pytest.mark.parametrize("page", [16, 64])
@pytest.mark.parametrize(("nodes", "prefixes"), RAGGED)
def test_equals_dense_over_ragged_trees(
    make_batch: MakeBatch, nodes: tuple[int, ...], prefixes: tuple[int, ...], page: int
) -> None:
    batch = make_batch(nodes, prefixes, page=page)
    lse = torch.full(batch.q.shape[:2], torch.nan)
    got = tree_attention_reference(**batch.arguments, lse=lse)
    want, want_lse = batch.dense()
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, want_lse.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", list(ATOL))
@pytest.mark.parametrize(
    ("heads", "dim"), [((2, 2), 64), ((4, 2), 80), ((9, 3), 8), ((8, 1), 128), ((14, 2), 16)]
)
def test_equals_dense_over_heads_dims_and_types(
    make_batch: MakeBatch, heads: tuple[int, int], dim: int, dtype: torch.dtype
) -> None:
    batch = make_batch((5, 1, 17), (9, 0, 33), heads=heads, dim=dim, dtype=dtype)
    got = tree_attention_reference(**batch.arguments, scale=0.3)
    assert got.dtype == dtype
    want, _ = batch.dense(scale=0.3)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=ATOL[dtype])


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_equals_dense_over_random_shapes(make_batch: MakeBatch, data: st.DataObject) -> None:
    requests = data.draw(st.integers(1, 4))
    nodes = data.draw(st.tuples(*[st.integers(0, 70)] * requests))
    prefixes = data.draw(st.tuples(*[st.integers(0, 40)] * requests))
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    batch = make_batch(
        nodes,
        prefixes,
        page=data.draw(st.sampled_from([1, 3, 16, 64])),
        heads=(kv_heads * group, kv_heads),
        dim=data.draw(st.integers(1, 9)),
        seed=data.draw(st.integers(0, 2**31)),
    )
    got = tree_attention_reference(**batch.arguments)
    torch.testing.assert_close(got, batch.dense()[0], rtol=0, atol=1e-12)


def test_padding_rows_and_rows_that_see_nothing_are_zero(make_batch: MakeBatch) -> None:
    batch = make_batch((4, 2), (0, 5), padding=6)
    batch.ancestors[1] = 0
    lse = torch.full(batch.q.shape[:2], torch.nan)
    got = tree_attention_reference(**batch.arguments, lse=lse)
    assert torch.equal(got[6:], torch.zeros(6, 4, 8, dtype=torch.float64))
    assert torch.equal(lse[6:], torch.full((6, 4), -torch.inf))
    assert torch.equal(got[1], torch.zeros(4, 8, dtype=torch.float64))
    assert torch.equal(lse[1], torch.full((4,), -torch.inf))
    assert torch.isfinite(got).all() and torch.isfinite(lse[[0, 2, 3, 4, 5]]).all()


def test_a_poisoned_node_reaches_its_descendants_alone(make_batch: MakeBatch) -> None:
    batch = make_batch((70,), (20,))
    before = tree_attention_reference(**batch.arguments)
    node = 3
    column = 20 + node
    page = int(batch.page_table[0, column // 16])
    batch.k_pool[page, column % 16] = torch.nan
    batch.v_pool[page, column % 16] = torch.nan
    after = tree_attention_reference(**batch.arguments)
    sees_it = batch.visible[0][:, column]
    assert 1 < int(sees_it.sum()) < 70
    assert torch.equal(after[:70][~sees_it], before[:70][~sees_it])
    assert torch.isnan(after[:70][sees_it]).all()


def test_every_bit_counts_for_its_own_row(make_batch: MakeBatch) -> None:
    batch = make_batch((130,), (3,))
    before = tree_attention_reference(**batch.arguments)
    for row, column in ((129, 0), (129, 63), (128, 64), (100, 31), (129, 128), (64, 32)):
        words = batch.ancestors.clone()
        word, bit = divmod(column, 64)
        words[row, word] ^= (1 << bit) if bit < 63 else -(1 << 63)
        after = tree_attention_reference(**{**batch.arguments, "ancestors": words})
        changed = (after != before)[:130].any(dim=(1, 2)).nonzero().flatten().tolist()
        assert changed == [row]


def test_a_request_does_not_feel_its_batch(make_batch: MakeBatch) -> None:
    batch = make_batch((21, 19, 7), (44, 3, 17))
    together = tree_attention_reference(**batch.arguments)
    starts = batch.cu_nodes.tolist()
    for index in range(3):
        first, last = starts[index], starts[index + 1]
        alone = tree_attention_reference(
            batch.q[first:last],
            batch.k_pool,
            batch.v_pool,
            batch.page_table[index : index + 1],
            torch.tensor([0, last - first], dtype=torch.int32),
            batch.prefix_len[index : index + 1],
            batch.ancestors[first:last],
        )
        assert torch.equal(alone, together[first:last])


def test_strided_views_equal_their_copies(make_batch: MakeBatch) -> None:
    batch = make_batch((9, 1), (20, 3))
    want = tree_attention_reference(**batch.arguments)
    fused = torch.randn(batch.q.shape[0], 3 * 4 * 8, dtype=torch.float64)
    fused[:, :32] = batch.q.flatten(1)
    packed = torch.cat([batch.k_pool, batch.v_pool], dim=-1).transpose(1, 2).contiguous()
    views = {
        "q": fused[:, :32].view(-1, 4, 8),
        "k_pool": packed[..., :8].transpose(1, 2),
        "v_pool": packed[..., 8:].transpose(1, 2),
    }
    assert not any(view.is_contiguous() for view in views.values())
    assert torch.equal(tree_attention_reference(**{**batch.arguments, **views}), want)


def test_out_and_lse_are_written_in_place(make_batch: MakeBatch) -> None:
    batch = make_batch((3,), (4,))
    out = torch.full_like(batch.q, torch.nan)
    lse = torch.full(batch.q.shape[:2], torch.nan)
    got = tree_attention_reference(**batch.arguments, out=out, lse=lse)
    assert got is out
    assert torch.equal(out, tree_attention_reference(**batch.arguments))
    assert torch.equal(torch.isneginf(lse), torch.tensor([[False]] * 3 + [[True]] * 3).expand(6, 4))
