"""Trees on a GPU, without vLLM: what rows see and attend to, the walk, what is told, refusals."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.rounds import TorchRoundOps
from jetflow_serve.counters import Counters
from jetflow_serve.cuda.limits import check_gpu
from jetflow_serve.cuda.lines import TreeLines, only_best, paths_first, walk_lines
from jetflow_serve.cuda.ops import device_ops
from jetflow_serve.cuda.records import Records
from jetflow_serve.leading_rows import LeadingRows, chain_words, count_leading, words_for
from jetflow_serve.options import ServeOptions
from jetflow_serve.packed_attention import attend_leading
from jetflow_serve.packed_cache import packed_pools
from jetflow_serve.refusals import ServeRefused
from jetflow_serve.stage import Staged, moves
from jetflow_tree import Candidates, Chain, Tree, ancestor_words, unpack_words, walk
from torch import Tensor

BLOCKS, HEADS, BLOCK, SIZE, ROWS = 24, 2, 16, 8, 9
OPS = TorchRoundOps()


@st.composite
def trees(draw: st.DrawFn, most: int) -> Tree:
    """Trees whose rows carry their own number, so that siblings always differ."""
    rows = draw(st.integers(1, most))
    parents = [-1] + [draw(st.integers(0, row - 1)) for row in range(1, rows)]
    return Tree.from_parents([100 + row for row in range(rows)], parents)


@dataclass(frozen=True, slots=True, eq=False)
class MadeTrees:
    """As ``jetflow_core.rounds.TreeBatch`` says."""

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    ancestors: Tensor
    positions: Tensor
    num_nodes: Tensor
    valid: Tensor


def put_trees(lines: TreeLines, slots: Sequence[int], drawn: Sequence[Tree], rows: int) -> None:
    """Keeps trees in slots, with padding as the builder on a device leaves it."""

    def padded(parts: Sequence[np.ndarray], fill: int) -> Tensor:
        table = np.full((len(parts), rows), fill, dtype=np.int32)
        for line, part in zip(table, parts, strict=True):
            line[: len(part)] = part
        return torch.from_numpy(table)

    words = np.zeros((len(drawn), rows, lines.words), dtype=np.int64)
    for line, tree in zip(words, drawn, strict=True):
        own = ancestor_words(tree).view(np.int64)
        line[: len(own), : own.shape[1]] = own
    depths = padded([tree.depths for tree in drawn], 0)
    made = MadeTrees(
        tokens=padded([tree.tokens for tree in drawn], 0),
        parents=padded([tree.parents for tree in drawn], -1),
        depths=depths,
        scores=depths.double(),
        ancestors=torch.from_numpy(words),
        positions=depths,
        num_nodes=torch.tensor([tree.num_nodes for tree in drawn], dtype=torch.int32),
        valid=torch.ones(len(drawn), dtype=torch.bool),
    )
    lines.put(torch.tensor(slots), made)


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


@given(st.lists(trees(ROWS), min_size=1, max_size=4), st.data())
def test_a_request_has_its_tree_or_a_chain(drawn: list[Tree], data: st.DataObject) -> None:
    """Lines come back from the slots they were put in, cut as the batch cut them."""
    slots = data.draw(st.permutations(range(6)))[: len(drawn)]
    scheduled = [data.draw(st.integers(1, tree.num_nodes)) for tree in drawn]
    drafted = [data.draw(st.booleans()) for _ in drawn]
    lines = TreeLines(6, ROWS, torch.device("cpu"))
    put_trees(lines, slots, drawn, ROWS)
    found = lines.take(
        torch.tensor(slots), torch.tensor(scheduled, dtype=torch.int32), torch.tensor(drafted)
    )
    for index, (tree, rows, own) in enumerate(zip(drawn, scheduled, drafted, strict=True)):
        depths = tree.depths if own else np.arange(ROWS)
        words = ancestor_words(tree).view(np.int64) if own else chain_words(ROWS)
        assert int(found.nodes[index]) == (rows if own else 1)
        assert found.depths[index, :rows].tolist() == depths[:rows].tolist()
        assert (found.ancestors[index, :rows].numpy() == words[:rows]).all()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.booleans(), trees(ROWS)), min_size=1, max_size=4),
    st.sampled_from(["heads first", "rows first"]),
    st.integers(0, 99),
)
def test_every_row_sees_its_context_and_its_path(
    batch: list[tuple[int, bool, Tree]], layout: str, seed: int
) -> None:
    """Trees, chains and single rows in one call equal plain attention, row by row."""
    contexts, drafted, drawn = (list(column) for column in zip(*batch, strict=True))
    scheduled = [tree.num_nodes for tree in drawn]
    lines = TreeLines(len(batch), ROWS, torch.device("cpu"))
    slots = list(range(len(batch)))
    put_trees(lines, slots, drawn, ROWS)
    counts = torch.tensor(scheduled, dtype=torch.int32)
    own = lines.take(torch.tensor(slots), counts, torch.tensor(drafted))
    cache, table = _cache(seed, layout=layout), _tables(len(batch), seed)
    prefix, total = torch.tensor(contexts, dtype=torch.int32), sum(scheduled)
    packed = OPS.pack_trees(
        own.tokens, prefix[:, None] + own.depths, own.ancestors, table, prefix, counts,
        rows=total, page=BLOCK,
    )  # fmt: skip
    # Of the batch more rows follow, which are not touched.
    query = torch.randn(total + 3, 4, SIZE, generator=torch.Generator().manual_seed(1))
    output = torch.full_like(query, 7.0)
    leading = LeadingRows(total, packed.cu_nodes, prefix, packed.ancestors)
    attend_leading(OPS, query, cache, table, leading, 0.3, output)
    keys, values = packed_pools(cache)
    line = 0
    for index, (context, tree) in enumerate(zip(contexts, drawn, strict=True)):
        sight = unpack_words(ancestor_words(tree), tree.num_nodes)
        sight = sight if drafted[index] else np.tri(tree.num_nodes, dtype=bool)
        for row in range(tree.num_nodes):
            assert int(packed.positions[line]) == context + int(sight[row].sum()) - 1
            places = torch.tensor([*range(context), *(context + sight[row].nonzero()[0]).tolist()])
            at = (table[index].long()[places // BLOCK], places % BLOCK)
            for head in range(4):
                own_keys, own_values = (pool[*at][:, head // 2] for pool in (keys, values))
                weights = (own_keys @ query[line, head] * 0.3).softmax(0)
                torch.testing.assert_close(
                    output[line, head], weights @ own_values, rtol=1e-4, atol=1e-5
                )
            line += 1
    assert (output[total:] == 7.0).all()


REQUEST = st.tuples(trees(ROWS), st.booleans(), st.integers(0, ROWS))


def _verified(drawn: list[Tree], drafted: list[bool]) -> tuple[TreeLines, list[int], Tensor]:
    """Lines that hold the trees, how many logits each request has, and where they begin."""
    lines = TreeLines(len(drawn), ROWS, torch.device("cpu"))
    put_trees(lines, list(range(len(drawn))), drawn, ROWS)
    counts = [tree.num_nodes if own else 1 for tree, own in zip(drawn, drafted, strict=True)]
    starts = torch.tensor(np.concatenate([[0], np.cumsum(counts)]), dtype=torch.int32)
    return lines, counts, starts


@settings(deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=4), st.data())
def test_a_batch_is_walked_as_each_of_its_trees(
    batch: list[tuple[Tree, bool, int]], data: st.DataObject
) -> None:
    """Kept rows, tokens, logits by path and counters are those of every tree walked alone."""
    drawn, drafted, legal = (list(column) for column in zip(*batch, strict=True))
    lines, counts, starts = _verified(drawn, drafted)
    pick = st.integers(100, 100 + ROWS)
    picks = [data.draw(pick) for _ in range(int(starts[-1]))]
    local = np.concatenate([np.arange(count) for count in counts])
    limits = np.repeat(legal, counts)
    taken = lines.take(
        torch.arange(len(batch)), torch.tensor(counts, dtype=torch.int32), torch.tensor(drafted)
    )
    paths = walk_lines(
        OPS, taken, torch.tensor(picks), starts, depth=ROWS,
        invalid=torch.from_numpy(local > limits),
    )  # fmt: skip
    order, emitted = paths_first(paths, starts, len(picks))
    alone = Counters()
    for index, tree in enumerate(drawn):
        own = tree if drafted[index] else Tree.root_only(0)
        first = int(starts[index])
        cut = own.trim(min(own.num_nodes, max(1, legal[index] + 1)))
        kept = walk(cut, picks[first : first + cut.num_nodes])
        assert paths.rows[index][paths.rows[index] >= 0].tolist() == [0, *kept.nodes]
        assert paths.tokens[index][paths.tokens[index] >= 0].tolist() == list(kept.emitted)
        path = slice(first, first + 1 + len(kept.nodes))
        assert order[path].tolist() == [first, *(first + node for node in kept.nodes)]
        assert emitted[path].tolist() == list(kept.emitted)
        if drafted[index]:
            entry = Staged("", first, 0, tree)
            alone.verified(tree, kept, entry.branches, len(moves(entry, kept)))
    records = Records(Counters())
    records.walked(taken, paths, drafted)
    assert records.counters == alone


@given(st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(0, 99))
def test_the_best_path_alone_is_left_of_a_chains_tables(
    depth: int, width: int, conditional: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    tokens = np.stack([random.permutation(50)[:width] for _ in range(depth)])
    scores = -random.random((2, depth, width if conditional else 1, width)) - 0.01
    table = only_best(torch.from_numpy(scores), torch.tensor([True, False]))
    assert (table[1].numpy() == scores[1]).all()
    budget = int(random.integers(1, depth + 3))
    built = OPS.build_tree(
        torch.from_numpy(np.stack([tokens, tokens])).int(),
        table,
        torch.tensor([7, 7], dtype=torch.int32),
        torch.tensor([budget, budget], dtype=torch.int32),
        torch.zeros(2, dtype=torch.int32),
        capacity=depth + 3,
    )
    wanted = Chain().build(7, Candidates(tokens, scores[0]), budget)
    rows = int(built.num_nodes[0])
    assert built.tokens[0, :rows].tolist() == wanted.tokens.tolist()
    assert built.parents[0, :rows].tolist() == list(range(-1, rows - 1))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"nodes": 256}, "at most 255; it is 256"),
        ({"runner_v2": False}, "need Model Runner V2"),
        ({"mixed_graphs": True}, "FULL_DECODE_ONLY"),
        ({"options": ServeOptions(budget="auto")}, "budget auto"),
        ({"options": ServeOptions(max_children=2)}, "max_children"),
    ],
)
def test_what_a_gpu_does_not_serve_is_refused(changed: dict[str, Any], said: str) -> None:
    plain: dict[str, Any] = {
        "options": ServeOptions(),
        "nodes": 255,
        "runner_v2": True,
        "mixed_graphs": False,
    }
    check_gpu(**plain)
    with pytest.raises(ServeRefused, match=re.escape(said)):
        check_gpu(**{**plain, **changed})


def test_trees_on_a_gpu_need_kernels() -> None:
    with pytest.raises(ServeRefused, match="jetflow-kernels"):
        device_ops(torch.device("cpu"))
