"""Masks, positions, the walk and the conversions equal their numpy counterparts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_tree import Tree
from jetflow_tree import ancestor_matrix as numpy_ancestor_matrix
from jetflow_tree import ancestor_words as numpy_ancestor_words
from jetflow_tree import walk as numpy_walk
from jetflow_tree.torch import (
    ancestor_matrix,
    ancestor_words,
    from_trees,
    pack_words,
    positions,
    to_accepted,
    to_trees,
    unpack_words,
    walk,
)

FEW = settings(max_examples=40, deadline=None)


@st.composite
def trees_of_any_shape(draw: st.DrawFn, max_rows: int = 12) -> Tree:
    """Any parents at all, siblings numbered from token 0."""
    rows = draw(st.integers(1, max_rows))
    parents = [-1] + [draw(st.integers(0, row - 1)) for row in range(1, rows)]
    tokens = [parents[:row].count(parents[row]) for row in range(rows)]
    return Tree.from_parents(tokens, parents)


def large_tree() -> Tree:
    """A tree of 200 rows, so that words end and begin inside it, bit 63 included."""
    rng = np.random.default_rng(1)
    parents = [-1, *(int(rng.integers(max(0, row - 9), row)) for row in range(1, 200))]
    return Tree.from_parents(list(range(200)), parents)


def on_device(trees: list[Tree], spare_rows: int):
    return from_trees(
        trees,
        max(tree.num_nodes for tree in trees) + spare_rows,
        max_depth=int(max(tree.depths.max() for tree in trees)),
        device="cpu",
    )


def assert_masks_equal(trees: list[Tree], spare_rows: int) -> None:
    device_trees = on_device(trees, spare_rows)
    words = ancestor_words(device_trees)
    matrix = ancestor_matrix(device_trees).numpy()
    budget = device_trees.budget
    assert words.shape == (len(trees), budget, -(-budget // 64))
    torch.testing.assert_close(pack_words(torch.from_numpy(matrix)), words)
    for request, tree in enumerate(trees):
        rows = tree.num_nodes
        expected = numpy_ancestor_words(tree)
        found = words[request].numpy().view(np.uint64)
        np.testing.assert_array_equal(found[:rows, : expected.shape[1]], expected)
        assert not found[:rows, expected.shape[1] :].any()
        np.testing.assert_array_equal(matrix[request, :rows, :rows], numpy_ancestor_matrix(tree))
        assert not matrix[request, :rows, rows:].any()
        np.testing.assert_array_equal(matrix[request, rows:], np.eye(budget, dtype=bool)[rows:])


@FEW
@given(trees=st.lists(trees_of_any_shape(), min_size=1, max_size=3), spare=st.integers(0, 3))
def test_masks_equal_the_numpy_masks_and_padding_sees_itself_alone(trees, spare):
    assert_masks_equal(trees, spare)


@pytest.mark.parametrize("spare", [0, 56])
def test_masks_over_several_words(spare):
    assert_masks_equal([large_tree(), Tree.root_only(3)], spare)


@FEW
@given(data=st.data(), trees=st.lists(trees_of_any_shape(), min_size=1, max_size=3))
def test_walk_equals_the_numpy_walk(data, trees):
    device_trees = on_device(trees, 2)
    # Few tokens, so that picks hit children often; padding carries token 0, which is among them.
    picks = torch.tensor(
        [[data.draw(st.integers(0, 2)) for _ in range(device_trees.budget)] for _ in trees]
    )
    accepted = walk(device_trees, picks)
    assert accepted.rows.shape == (len(trees), device_trees.max_depth)
    for request, (found, tree) in enumerate(zip(to_accepted(accepted), trees, strict=True)):
        expected = numpy_walk(tree, picks[request, : tree.num_nodes].numpy())
        assert found == expected
        count = int(accepted.num_accepted[request])
        assert count == len(expected.nodes)
        assert (accepted.rows[request, count:] == -1).all()
        assert (accepted.tokens[request, count:] == -1).all()


def test_every_path_of_a_large_tree_can_be_accepted():
    tree = large_tree()
    picks = torch.full((tree.num_nodes, tree.num_nodes), -5)
    for leaf in range(tree.num_nodes):
        for row in tree.path(leaf):
            picks[leaf, tree.parents[row]] = int(tree.tokens[row])
    accepted = walk(on_device([tree] * tree.num_nodes, 0), picks)
    for leaf, found in enumerate(to_accepted(accepted)):
        assert found.nodes == tuple(tree.path(leaf))
        assert found.correction == -5


@FEW
@given(trees=st.lists(trees_of_any_shape(), min_size=1, max_size=3), spare=st.integers(0, 3))
def test_conversion_there_and_back_changes_nothing(trees, spare):
    for found, tree in zip(to_trees(on_device(trees, spare)), trees, strict=True):
        for name in ("tokens", "parents", "depths", "scores"):
            np.testing.assert_array_equal(getattr(found, name), getattr(tree, name))


@FEW
@given(columns=st.integers(1, 130), seed=st.integers(0, 2**32 - 1))
def test_packing_is_undone_by_unpacking(columns, seed):
    matrix = torch.from_numpy(np.random.default_rng(seed).random((2, 3, columns)) < 0.5)
    words = pack_words(matrix)
    assert words.shape == (2, 3, -(-columns // 64))
    assert torch.equal(unpack_words(words, columns), matrix)


def test_positions_are_root_positions_plus_depths():
    trees = on_device([Tree.from_parents([1, 2, 3], [-1, 0, 1]), Tree.root_only(4)], 1)
    assert positions(trees, torch.tensor([10, 20])).tolist() == [
        [10, 11, 12, 10],
        [20, 20, 20, 20],
    ]


def test_bad_arguments_are_refused():
    tree = Tree.from_parents([1, 2, 3], [-1, 0, 1])
    trees = on_device([tree], 0)
    with pytest.raises(ValueError, match=r"picks must be \[1, 3\], got \[1, 2\]"):
        walk(trees, torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="root_positions must be int64"):
        positions(trees, torch.zeros(1))
    with pytest.raises(ValueError, match="matrix must be bool"):
        pack_words(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"num_columns must be in 0\.\.64, got 65"):
        unpack_words(torch.zeros(1, dtype=torch.int64), 65)
    with pytest.raises(ValueError, match="words must be int64"):
        unpack_words(torch.zeros(1), 5)
    with pytest.raises(ValueError, match="tree 0 has 3 rows, the budget is 2"):
        from_trees([tree], 2, max_depth=2, device="cpu")
    with pytest.raises(ValueError, match="tree 0 is 2 deep, max_depth is 1"):
        from_trees([tree], 3, max_depth=1, device="cpu")
    with pytest.raises(ValueError, match="at least one tree"):
        from_trees([], 3, max_depth=1, device="cpu")
