"""A row depends on what it sees and on nothing else, bit for bit, in every version."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from torch import Tensor

MakeBatch = Callable[..., Any]
Attend = Callable[..., Tensor]
SMALL = {"heads": (2, 1), "dim": 64, "dtype": torch.float16}


def _alone(batch: Any, index: int) -> dict[str, torch.Tensor]:
    first, last = batch.cu_nodes[index : index + 2].tolist()
    return {
        **batch.arguments,
        "q": batch.q[first:last],
        "ancestors": batch.ancestors[first:last],
        "page_table": batch.page_table[index : index + 1],
        "cu_nodes": torch.tensor([0, last - first], dtype=torch.int32),
        "prefix_len": batch.prefix_len[index : index + 1],
    }


def test_a_request_does_not_feel_its_batch(make_batch: MakeBatch, attend: Attend) -> None:
    # Cut by shapes, the first request alone would have larger tiles than in this batch.
    batch = make_batch((40, 1, 0, 3), (130, 200, 3, 0), **SMALL)
    together = attend(**batch.arguments, cut="by_request")
    starts = batch.cu_nodes.tolist()
    for index in (0, 1, 3):
        alone = attend(**_alone(batch, index), cut="by_request")
        assert torch.equal(alone, together[starts[index] : starts[index + 1]])


def test_programs_pages_and_their_order_change_no_bits(
    make_batch: MakeBatch,
    attend: Attend,
    start: Callable[..., None],
    moved: Callable[[Tensor], Tensor],
) -> None:
    batch = make_batch((3, 2), (140, 17), **SMALL)
    want = attend(**batch.arguments)
    arguments = TreeAttentionArguments(**{n: moved(t) for n, t in batch.arguments.items()})
    tiles = plan.tiles_for(8, 2, 2, 64, torch.float16)
    for programs in (1, 5):
        out = torch.full_like(arguments.q, torch.nan)
        start(arguments, out=out, lse=None, scale=64**-0.5, tiles=tiles, programs=programs)
        assert torch.equal(out.cpu(), want)
    for page, seed in ((48, 0), (16, 1)):
        other = make_batch((3, 2), (140, 17), page=page, seed=seed, **SMALL)
        moved = _with_rows_of(batch, other, page)
        assert torch.equal(attend(**moved), want)


def _with_rows_of(batch: Any, other: Any, page: int) -> dict[str, torch.Tensor]:
    """The keys, values, rows and trees of ``batch`` in the pages of ``other``."""
    k_pool, v_pool = other.k_pool.clone(), other.v_pool.clone()
    for index, (keys, values) in enumerate(zip(batch.keys, batch.values, strict=True)):
        for row in range(len(keys)):
            where = int(other.page_table[index, row // page]), row % page
            k_pool[where], v_pool[where] = keys[row].half(), values[row].half()
    return {**batch.arguments, "k_pool": k_pool, "v_pool": v_pool, "page_table": other.page_table}


def test_poison_in_memory_nobody_wrote_reaches_no_row(
    make_batch: MakeBatch, attend: Attend, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch((5, 2), (140, 0), padding=4, **SMALL)
    want = batch.dense()[0]
    original = torch.Tensor.new_empty

    def poisoned(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        made = original(self, *args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    batch.ancestors[1] = 0
    batch.page_table[1, 1:] = 2**31 - 1
    got = attend(**batch.arguments)
    keep = [0, 2, 3, 4, 5, 6]
    torch.testing.assert_close(got[keep].double(), want[keep], rtol=0, atol=2e-3)
    assert torch.isfinite(got).all()
    assert torch.equal(got[7:], torch.zeros_like(got[7:]))


def test_rows_that_see_nothing_are_zero(make_batch: MakeBatch, attend: Attend) -> None:
    batch = make_batch((4,), (0,), **SMALL)
    batch.ancestors[2] = 0
    lse = torch.full(batch.q.shape[:2], torch.nan)
    got = attend(**batch.arguments, lse=lse)
    assert torch.equal(got[2], torch.zeros_like(got[2]))
    assert torch.isneginf(lse[2:3]).all() and torch.isneginf(lse[4:]).all()
    assert torch.isfinite(lse[[0, 1, 3]]).all()


def test_every_bit_counts_for_its_own_row(make_batch: MakeBatch, attend: Attend) -> None:
    batch = make_batch((70,), (3,), heads=(1, 1), dim=64, dtype=torch.float16)
    before = attend(**batch.arguments)
    for row, column in ((69, 0), (69, 31), (68, 32), (66, 63), (69, 64)):
        words = batch.ancestors.clone()
        word, bit = divmod(column, 64)
        words[row, word] ^= (1 << bit) if bit < 63 else -(1 << 63)
        after = attend(**{**batch.arguments, "ancestors": words})
        assert (after != before)[:70].any(dim=(1, 2)).nonzero().flatten().tolist() == [row]
    beyond = batch.ancestors.clone()
    beyond[:, 1] |= -(1 << 10)
    assert torch.equal(attend(**{**batch.arguments, "ancestors": beyond}), before)


def test_a_key_that_is_nan_reaches_no_other_branch(make_batch: MakeBatch, attend: Attend) -> None:
    batch = make_batch((12,), (20,), **SMALL)
    before = attend(**batch.arguments)
    where = int(batch.page_table[0, 23 // 16]), 23 % 16
    batch.k_pool[where], batch.v_pool[where] = torch.nan, 1e4
    after = attend(**batch.arguments)
    sees_it = batch.visible[0][:, 23]
    assert 0 < int(sees_it.sum()) < 12
    assert torch.equal(after[:12][~sees_it], before[:12][~sees_it])
    assert torch.isnan(after[:12][sees_it]).all()


def test_more_descendants_change_no_bits_of_the_others(
    make_batch: MakeBatch, attend: Attend
) -> None:
    batch = make_batch((13,), (150,), **SMALL)
    want = attend(**batch.arguments)
    fewer = batch.arguments
    fewer["cu_nodes"] = torch.tensor([0, 10], dtype=torch.int32)
    assert torch.equal(attend(**fewer)[:10], want[:10])


def test_no_requests_is_all_padding(attend: Attend) -> None:
    empty = torch.zeros(0, dtype=torch.int32)
    pool = torch.full((1, 16, 1, 64), torch.nan, dtype=torch.float16)
    got = attend(
        torch.full((3, 2, 64), torch.nan, dtype=torch.float16), pool, pool,
        torch.zeros(0, 20, dtype=torch.int32),
        torch.zeros(1, dtype=torch.int32), empty, torch.zeros(3, 1, dtype=torch.int64),
    )  # fmt: skip
    assert torch.equal(got, torch.zeros(3, 2, 64, dtype=torch.float16))


@pytest.mark.slow
def test_torch_accepts_the_operator(
    make_batch: MakeBatch, backend: str, moved: Callable[[Tensor], Tensor]
) -> None:
    batch = make_batch((3,), (4,), padding=0, **SMALL)
    values = [moved(tensor) for tensor in batch.arguments.values()]
    out, lse = torch.zeros_like(values[0]), values[0].new_zeros((3, 2), dtype=torch.float32)
    operator = torch.ops.jetflow_kernels.tree_attention_out.default
    found = torch.library.opcheck(operator, (*values, 0.125, backend, "by_request", out, lse))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
def test_offsets_past_32_bits(attend: Attend, moved: Callable[[Tensor], Tensor]) -> None:
    # Only the touched pages of this 4 GiB pool are ever backed by memory on the CPU.
    pages = 2**31 // (16 * 64) + 2
    device = moved(torch.zeros(1)).device
    pool = torch.empty(pages, 16, 1, 64, dtype=torch.float16, device=device)
    assert pool.numel() > 2**31
    pool[-1] = 1.0
    pool[0] = torch.nan
    got = attend(
        torch.ones(2, 1, 64, dtype=torch.float16), pool, pool,
        torch.full((1, 1), pages - 1, dtype=torch.int32),
        torch.tensor([0, 2], dtype=torch.int32), torch.tensor([3], dtype=torch.int32),
        torch.tensor([[1], [3]]),
    )  # fmt: skip
    assert torch.equal(got, torch.ones_like(got))
