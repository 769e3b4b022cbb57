"""Masks: dense, packed and by definition are one thing, and nobody sees across branches."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_tree import (
    Tree,
    ancestor_matrix,
    ancestor_words,
    linked_lists,
    position_offsets,
    retrieve_indices,
    unpack_words,
)
from jetflow_tree.reference import ancestor_closure


@st.composite
def trees(draw, max_nodes=80):
    count = draw(st.integers(1, max_nodes))
    parents = [-1] + [draw(st.integers(0, row - 1)) for row in range(1, count)]
    return Tree.from_parents(list(range(count)), parents)


@given(trees())
def test_dense_packed_and_closure_agree(tree):
    closure = ancestor_closure(tree)
    words = ancestor_words(tree)
    assert words.dtype == np.uint64
    assert words.shape == (tree.num_nodes, -(-tree.num_nodes // 64))
    assert (ancestor_matrix(tree) == closure).all()
    assert (unpack_words(words, tree.num_nodes) == closure).all()
    for row in range(tree.num_nodes):
        for column in range(tree.num_nodes):
            bit = (int(words[row, column // 64]) >> (column % 64)) & 1
            assert bit == closure[row, column]


@given(trees())
def test_siblings_and_their_descendants_never_see_each_other(tree):
    seen = ancestor_matrix(tree)
    for row in range(tree.num_nodes):
        family = tree.children(row)
        below = [set(np.flatnonzero(seen[:, child]).tolist()) for child in family]
        for i, mine in enumerate(below):
            for others in below[i + 1 :]:
                assert not mine & others
                assert not seen[np.ix_(sorted(mine), sorted(others))].any()
                assert not seen[np.ix_(sorted(others), sorted(mine))].any()


@given(trees(), st.data())
def test_adding_nodes_never_changes_an_earlier_row(tree, data):
    size = data.draw(st.integers(1, tree.num_nodes))
    smaller = ancestor_matrix(tree.trim(size))
    larger = ancestor_matrix(tree)
    assert (larger[:size, :size] == smaller).all()
    assert not larger[:size, size:].any()


@given(trees())
def test_each_row_sees_its_path_and_nothing_else(tree):
    seen = ancestor_matrix(tree)
    for row in range(tree.num_nodes):
        expected = [0, *tree.path(row)]
        assert np.flatnonzero(seen[row]).tolist() == expected
        assert position_offsets(tree)[row] == len(expected) - 1


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 127, 128, 129, 256])
def test_a_chain_is_causal_at_every_word_boundary(rows):
    chain = Tree.from_parents(range(rows), range(-1, rows - 1))
    assert (ancestor_matrix(chain) == np.tri(rows, dtype=bool)).all()
    assert ancestor_words(chain).shape[1] == -(-rows // 64)


def test_256_rows_are_4_words():
    tree = Tree.from_parents(range(256), [-1] + [0] * 255)
    words = ancestor_words(tree)
    assert words.shape == (256, 4)
    assert words[255].tolist() == [1, 0, 0, 1 << 63]


@given(trees())
def test_retrieve_indices_are_the_paths_to_the_leaves(tree):
    table = retrieve_indices(tree)
    leaves = [row for row in range(tree.num_nodes) if not tree.children(row)]
    assert table.shape == (len(leaves), tree.max_depth + 1)
    for line, leaf in zip(table.tolist(), leaves, strict=True):
        path = [0, *tree.path(leaf)]
        assert line == path + [-1] * (tree.max_depth + 1 - len(path))


@given(trees())
def test_linked_lists_walk_all_children_in_order(tree):
    first, following = linked_lists(tree)
    for row in range(tree.num_nodes):
        met, child = [], int(first[row])
        while child >= 0:
            met.append(child)
            child = int(following[child])
        assert tuple(met) == tree.children(row)
    assert following[0] == -1


def test_unpack_refuses_wrong_words():
    words = ancestor_words(Tree.root_only(1))
    with pytest.raises(ValueError, match=r"1 words hold 0\.\.64 columns, asked 65"):
        unpack_words(words, 65)
    with pytest.raises(ValueError, match="uint64"):
        unpack_words(words.astype(np.int64), 1)
    with pytest.raises(ValueError, match="uint64"):
        unpack_words(words[0], 1)
