"""The tree: one place for validation, and what can be asked of it."""

import numpy as np
import pytest
from jetflow_tree import Tree

BRANCHED = Tree.from_parents([7, 1, 2, 3, 4], [-1, 0, 0, 1, 2], [0.0, -0.5, -1.0, -0.7, -1.5])


def test_links_and_depths_follow_from_parents():
    assert BRANCHED.num_nodes == 5
    assert BRANCHED.max_depth == 2
    assert BRANCHED.depths.tolist() == [0, 1, 1, 2, 2]
    assert BRANCHED.children(0) == (1, 2)
    assert BRANCHED.children(4) == ()
    assert BRANCHED.path(4) == (2, 4)
    assert BRANCHED.path(0) == ()


def test_dtypes_are_those_of_the_contract_and_arrays_are_read_only():
    assert [
        array.dtype
        for array in (BRANCHED.tokens, BRANCHED.parents, BRANCHED.depths, BRANCHED.scores)
    ] == [np.int64, np.int32, np.int32, np.float64]
    with pytest.raises(ValueError, match="read-only"):
        BRANCHED.tokens[0] = 1
    with pytest.raises(AttributeError):
        BRANCHED.tokens = np.zeros(5)


def test_the_callers_arrays_stay_writable_and_apart():
    tokens = np.array([7, 1])
    tree = Tree.from_parents(tokens, np.array([-1, 0]))
    tokens[1] = 5
    assert tree.tokens.tolist() == [7, 1]


def test_root_only_is_one_row():
    tree = Tree.root_only(3)
    assert (tree.num_nodes, tree.max_depth, tree.expected_length()) == (1, 0, 1.0)
    assert tree.parents.tolist() == [-1]
    with pytest.raises(ValueError, match="-3"):
        Tree.root_only(-3)
    for token in (2.5, 2**63, True):
        with pytest.raises(ValueError, match=f"a whole number from 0, got {token}"):
            Tree.root_only(token)


def test_expected_length_is_one_plus_the_path_probabilities():
    drafted = np.exp([-0.5, -1.0, -0.7, -1.5]).sum()
    assert BRANCHED.expected_length() == pytest.approx(1.0 + drafted)


def test_breadth_first_keeps_every_path():
    tree = Tree.from_parents([7, 1, 2, 3, 4], [-1, 0, 1, 2, 0], [0.0, -0.1, -0.2, -0.3, -0.4])
    flat = tree.breadth_first()
    assert flat.depths.tolist() == [0, 1, 1, 2, 3]

    def paths(t):
        return {
            (tuple(t.tokens[list(t.path(row))].tolist()), float(t.scores[row]))
            for row in range(t.num_nodes)
        }

    assert paths(flat) == paths(tree)
    Tree(flat.tokens, flat.parents, flat.depths, flat.scores)


def test_trim_keeps_the_front_rows():
    assert BRANCHED.trim(3).tokens.tolist() == [7, 1, 2]
    for size in (0, 6, -1):
        with pytest.raises(ValueError, match=rf"{size} rows, the tree has 1\.\.5"):
            BRANCHED.trim(size)


@pytest.mark.parametrize("row", [-1, 5])
def test_rows_outside_the_tree_are_refused(row):
    for ask in (BRANCHED.children, BRANCHED.path):
        with pytest.raises(ValueError, match=rf"row {row} is outside 0\.\.4"):
            ask(row)


@pytest.mark.parametrize(
    ("tokens", "parents", "scores", "message"),
    [
        ([], [], None, "N >= 1"),
        ([7], [0], None, "parent must be -1"),
        ([7, 1], [-1, 1], None, "parent of row 1 must be in 0..0, got 1"),
        ([7, 1], [-1, -1], None, "parent of row 1 must be in 0..0, got -1"),
        ([7, 1, 2], [-1, 0, 2], None, "parent of row 2 must be in 0..1, got 2"),
        ([7, 1, 1], [-1, 0, 0], None, "row 0 has two children with the token 1"),
        ([7, -1], [-1, 0], None, "got -1"),
        ([7.5, 1], [-1, 0], None, "integers"),
        ([7, 1], [-1.0, 0.0], None, "integers"),
        ([7, 1, 2], [-1, 0], None, "one length"),
        ([[7]], [[-1]], None, "shape"),
        ([7, 1], [-1, 0], [0.0, np.nan], "scores"),
        ([7, 1], [-1, 0], [0.0, 0.1], "scores"),
        ([7, 1], [-1, 0], [-1.0, -2.0], "scores"),
        ([7, 1], [-1, 0], [0.0], "one length"),
    ],
)
def test_what_is_no_tree_is_refused(tokens, parents, scores, message):
    with pytest.raises(ValueError, match=message):
        Tree.from_parents(tokens, parents, scores)


def test_depths_must_fit_the_parents():
    with pytest.raises(ValueError, match="depths"):
        Tree(np.array([7, 1]), np.array([-1, 0]), np.array([0, 2]), np.zeros(2))


def test_the_same_token_may_stand_below_different_parents():
    assert Tree.from_parents([7, 1, 2, 3, 3], [-1, 0, 0, 1, 2]).num_nodes == 5


@pytest.mark.parametrize("parent", [2**32, 2**32 - 1, -(2**32), -2])
def test_links_that_32_bits_would_fold_are_refused(parent: int) -> None:
    with pytest.raises(ValueError, match=r"parents must be -1 or a row or depth, got"):
        Tree.from_parents([7, 1], [-1, parent])
    with pytest.raises(ValueError, match=r"depths must be -1 or a row or depth, got"):
        Tree(np.array([7, 1]), np.array([-1, 0]), np.array([0, parent]), np.zeros(2))


def test_tokens_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens must fit 64 bits with a sign"):
        Tree.from_parents(np.array([2**64 - 1, 1], dtype=np.uint64), [-1, 0])
