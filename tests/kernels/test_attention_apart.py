"""Two kernels: pools as matrices, what is refused, and tiles of ragged batches."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from torch import Tensor

pytest.importorskip("triton")
from jetflow_kernels.attention import apart

SIZES = apart.Apart(rows=128, columns=64, warps=8, stages=3, programs=1, specialized=False)


def _pools(pages: int, page: int, heads: int, dim: int, layers: int) -> dict[str, Tensor]:
    """Pools of numbers that are all different, in the layouts that models have."""

    def numbered(*shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        return torch.arange(count, dtype=torch.float32).view(shape)

    return {
        "separate": numbered(pages, page, heads, dim),
        "layers in a page": numbered(pages, layers, page, heads, dim)[:, layers - 1],
        "head first": numbered(pages, heads, page, dim).transpose(1, 2),
        "keys beside values": numbered(pages, heads, page, 2 * dim).transpose(1, 2)[..., dim:],
        "both in a row": numbered(pages, page, heads, 2 * dim)[..., dim:],
    }


@given(
    pages=st.integers(1, 3),
    page=st.sampled_from([1, 16]),
    heads=st.integers(1, 3),
    dim=st.sampled_from([4, 8]),
    layers=st.integers(1, 3),
)
def test_a_box_of_the_matrix_is_a_head_of_a_page(
    pages: int, page: int, heads: int, dim: int, layers: int
) -> None:
    for pool in _pools(pages, page, heads, dim, layers).values():
        matrix = apart.flat(pool)
        assert matrix is not None
        whole = pool.as_strided((matrix.rows, matrix.columns), (pool.stride(1), 1))
        for at in range(pages):
            for head in range(heads):
                top = at * matrix.page_rows + head * matrix.head_rows
                left = head * matrix.head_columns
                box = whole[top : top + page, left : left + dim]
                assert torch.equal(box, pool[at, :, head])


def test_pools_that_are_no_matrix() -> None:
    pool = torch.zeros(2, 16, 3, 8)
    assert apart.flat(pool.transpose(2, 3).contiguous().transpose(2, 3)) is None
    assert apart.flat(torch.zeros(2, 16 * 24 + 4)[:, : 16 * 24].unflatten(1, (16, 3, 8))) is None
    assert apart.flat(torch.zeros(2 * 16 * 24 + 1)[1:].view(2, 16, 3, 8)) is None


@pytest.fixture
def arguments(make_batch: Callable[..., Any]) -> TreeAttentionArguments:
    batch = make_batch((5,), (70,), page=64, heads=(2, 1), dim=64, dtype=torch.float16)
    return TreeAttentionArguments(**batch.arguments)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"columns": 128}, "pages of 64 rows are no multiple of 128"),
        ({"specialized": True}, "warps for copies want 128 rows and 4 warps, not 128 and 8"),
    ],
)
def test_sizes_that_do_not_fit(
    arguments: TreeAttentionArguments, change: dict[str, Any], reason: str
) -> None:
    assert apart.why_not(arguments, SIZES) is None
    sizes = replace(SIZES, **change)
    assert apart.why_not(arguments, sizes) == reason
    with pytest.raises(ValueError, match=f"does not take this call: {reason}"):
        apart.launch_apart(
            arguments, out=torch.empty_like(arguments.q), lse=None, scale=1.0, apart=sizes
        )


def test_tensors_that_do_not_fit(arguments: TreeAttentionArguments) -> None:
    far = torch.empty_strided(arguments.q.shape, (2**23, 64, 1), dtype=torch.float16, device="meta")
    whole = {name: getattr(arguments, name) for name in TreeAttentionArguments.__slots__}
    for change, reason in (
        ({"q": arguments.q.float()}, "boxes are for 16 bits"),
        ({"q": far}, "q has rows 8388608 apart"),
        ({"prefix_len": arguments.prefix_len[:0]}, "there are no requests"),
        ({"v_pool": arguments.v_pool.transpose(2, 3)}, "no boxes describe pools of strides"),
    ):
        found = apart.why_not(TreeAttentionArguments(**{**whole, **change}), SIZES)
        assert found is not None and found.startswith(reason)


@given(
    counts=st.lists(st.integers(0, 256), min_size=1, max_size=9),
    padding=st.integers(0, 9),
    group=st.integers(1, 16),
    tile=st.sampled_from([16, 64, 128]),
)
def test_requests_have_tiles_of_their_own(
    counts: list[int], padding: int, group: int, tile: int
) -> None:
    # The rule of ``request_of_tile`` in Python.
    slack = tile - (group & -group)
    firsts = [sum(counts[:index]) for index in range(len(counts) + 1)]
    begins = [(first * group + index * slack) // tile for index, first in enumerate(firsts)]
    for index, count in enumerate(counts):
        assert begins[index] + -(-count * group // tile) <= begins[index + 1]
    assert begins[-1] <= plan.most_tiles(firsts[-1] + padding, len(counts), group, tile)


@pytest.mark.parametrize(
    ("rows", "requests", "pieces"), [(64, 1, 8), (128, 1, 4), (256, 1, 2), (512, 8, 1), (32, 32, 1)]
)
def test_pieces_fill_a_card(rows: int, requests: int, pieces: int) -> None:
    # Qwen3-8B: 8 key heads of 4 query heads.
    empty = torch.empty(0, dtype=torch.float16)
    shaped = TreeAttentionArguments(
        q=empty.new_empty(1).expand(rows, 32, 128),
        k_pool=empty.new_empty(1).expand(99, 128, 8, 128),
        v_pool=empty,
        page_table=torch.zeros(1, dtype=torch.int32).expand(requests, 40),
        cu_nodes=empty,
        prefix_len=torch.zeros(requests, dtype=torch.int32),
        ancestors=empty,
    )
    assert apart.pieces_of(shaped, SIZES) == pieces
    assert apart.pieces_of(shaped, replace(SIZES, most=2)) == min(pieces, 2)
