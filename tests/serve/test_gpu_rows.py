"""Trees on a GPU, the parts without vLLM: leading rows, their attention, the move, refusals."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.rounds import TorchRoundOps
from jetflow_serve.cuda.limits import check_gpu
from jetflow_serve.cuda.ops import device_ops
from jetflow_serve.leading_rows import (
    LeadingRows,
    chain_words,
    count_leading,
    leading_words,
    words_for,
)
from jetflow_serve.packed_attention import attend_leading
from jetflow_serve.packed_cache import packed_pools
from jetflow_serve.refusals import ServeRefused
from jetflow_serve.stage import Staged, paths
from jetflow_tree import Tree, unpack_words, walk
from torch import Tensor

BLOCKS, HEADS, BLOCK, SIZE = 24, 2, 16, 8


@st.composite
def trees(draw: st.DrawFn, most: int = 9) -> Tree:
    """Trees whose rows carry their own number, so that siblings always differ."""
    rows = draw(st.integers(1, most))
    parents = [-1] + [draw(st.integers(0, row - 1)) for row in range(1, rows)]
    return Tree.from_parents([100 + row for row in range(rows)], parents)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], list[Staged | None]]:
    """Rows, contexts and trees of up to four requests; some are pieces of a prompt."""
    scheduled, contexts, staged = [], [], []
    first = 0
    for number in range(draw(st.integers(1, 4))):
        context = draw(st.integers(0, 40))
        tree = draw(st.one_of(st.none(), trees()))
        rows = draw(st.integers(1, 9)) if tree is None else tree.num_nodes
        scheduled.append(rows)
        contexts.append(context)
        staged.append(None if tree is None else Staged(str(number), first, context, tree))
        first += rows
    return scheduled, contexts, staged


def _cache(seed: int, *, layout: str) -> Tensor:
    """A layer's cache, its memory by blocks and heads or by blocks and rows."""
    random = torch.Generator().manual_seed(seed)
    if layout == "heads first":
        return torch.randn(BLOCKS, HEADS, BLOCK, 2 * SIZE, generator=random)
    return torch.randn(BLOCKS, BLOCK, HEADS, 2 * SIZE, generator=random).transpose(1, 2)


def _tables(requests: int, seed: int) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    pages = torch.randperm(BLOCKS, generator=random)[: 4 * requests]
    return pages.view(requests, 4).int()


def _sight(entry: Staged | None, rows: int) -> np.ndarray:
    return np.tri(rows, dtype=bool) if entry is None else entry.sight()


def test_pools_are_views_of_the_cache() -> None:
    cache = _cache(0, layout="rows first")
    keys, values = packed_pools(cache)
    assert keys.shape == values.shape == (BLOCKS, BLOCK, HEADS, SIZE)
    assert keys.untyped_storage().data_ptr() == cache.untyped_storage().data_ptr()
    assert torch.equal(keys[3, 5, 1], cache[3, 1, 5, :SIZE])
    assert torch.equal(values[3, 5, 1], cache[3, 1, 5, SIZE:])


@pytest.mark.parametrize(
    ("scheduled", "count"), [([], 0), ([4, 1, 64], 3), ([4, 65, 1], 1), ([900], 0)]
)
def test_long_pieces_of_a_prompt_are_not_among_the_leading(
    scheduled: list[int], count: int
) -> None:
    assert count_leading(scheduled, 64) == count


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_a_row_of_a_chain_sees_all_before_it(rows: int) -> None:
    words = chain_words(rows)
    assert words.shape == (rows, words_for(rows))
    assert (unpack_words(words.view(np.uint64), rows) == np.tri(rows, dtype=bool)).all()


@given(batches())
def test_words_of_a_batch_are_those_of_its_requests(
    batch: tuple[list[int], list[int], list[Staged | None]],
) -> None:
    scheduled, _, staged = batch
    words = leading_words(scheduled, staged, 2)
    first = 0
    for rows, entry in zip(scheduled, staged, strict=True):
        own = words[first : first + rows].view(np.uint64)
        assert (unpack_words(own, rows) == _sight(entry, rows)).all()
        first += rows


@settings(deadline=None, max_examples=40)
@given(batches(), st.sampled_from(["heads first", "rows first"]), st.integers(0, 99))
def test_every_row_sees_its_context_and_its_path(
    batch: tuple[list[int], list[int], list[Staged | None]], layout: str, seed: int
) -> None:
    """Trees, chains and single rows in one call equal plain attention, row by row."""
    scheduled, contexts, staged = batch
    cache = _cache(seed, layout=layout)
    table = _tables(len(scheduled), seed)
    starts = np.concatenate([[0], np.cumsum(scheduled)])
    # Of the batch more rows follow, which are not touched.
    query = torch.randn(int(starts[-1]) + 3, 4, SIZE, generator=torch.Generator().manual_seed(1))
    output = torch.full_like(query, 7.0)
    leading = LeadingRows(
        int(starts[-1]),
        torch.from_numpy(starts).int(),
        torch.tensor(contexts, dtype=torch.int32),
        torch.from_numpy(leading_words(scheduled, staged, 1)),
    )
    attend_leading(TorchRoundOps(), query, cache, table, leading, 0.3, output)
    keys, values = packed_pools(cache)
    for index, (rows, context, entry) in enumerate(zip(scheduled, contexts, staged, strict=True)):
        sight = _sight(entry, rows)
        for row in range(rows):
            places = torch.tensor([*range(context), *(context + sight[row].nonzero()[0]).tolist()])
            at = (table[index].long()[places // BLOCK], places % BLOCK)
            for head in range(4):
                own_keys, own_values = (pool[*at][:, head // 2] for pool in (keys, values))
                line = int(starts[index]) + row
                weights = (own_keys @ query[line, head] * 0.3).softmax(0)
                torch.testing.assert_close(
                    output[line, head], weights @ own_values, rtol=1e-4, atol=1e-5
                )
    assert (output[int(starts[-1]) :] == 7.0).all()


@settings(deadline=None)
@given(batches(), st.data())
def test_accepted_rows_are_moved_behind_their_context(
    batch: tuple[list[int], list[int], list[Staged | None]], data: st.DataObject
) -> None:
    _, contexts, staged = batch
    kept = []
    for entry in staged:
        tree = Tree.root_only(0) if entry is None else entry.tree
        pick = st.sampled_from(tree.tokens.tolist())
        kept.append(walk(tree, [data.draw(pick) for _ in range(tree.num_nodes)]))
    rows = paths(staged, kept)
    cache = _cache(3, layout="rows first")
    before, table = cache.clone(), _tables(len(contexts), 3)
    ops = TorchRoundOps()
    nothing = torch.empty(len(rows), 9, 0)
    ops.commit_path(
        ops.cache_pools(packed_pools(cache)),
        table,
        torch.tensor(contexts, dtype=torch.int32),
        torch.from_numpy(rows),
        nothing,
    )
    wanted = before.clone()
    for index, (entry, each) in enumerate(zip(staged, kept, strict=True)):
        if entry is None:
            continue
        for depth, node in enumerate(each.nodes, start=1):
            source, target = contexts[index] + node, contexts[index] + depth
            pages = table[index].tolist()
            wanted[pages[target // BLOCK], :, target % BLOCK] = before[
                pages[source // BLOCK], :, source % BLOCK
            ]
    assert torch.equal(cache, wanted)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"nodes": 256, "runner_v2": True}, "at most 255; it is 256"),
        ({"nodes": 63, "runner_v2": False}, "need Model Runner V2"),
    ],
)
def test_what_a_gpu_does_not_serve_is_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(ServeRefused, match=re.escape(said)):
        check_gpu(nodes=options["nodes"], runner_v2=bool(options["runner_v2"]))
    check_gpu(nodes=255, runner_v2=True)


def test_trees_on_a_gpu_need_kernels() -> None:
    with pytest.raises(ServeRefused, match="jetflow-kernels"):
        device_ops(torch.device("cpu"))
