"""Exact best-first: the top of everything, nested, with settled ties; and the edges of builders."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_tree import (
    AllChildren,
    BestFirst,
    Candidates,
    Chain,
    Tree,
    TreeBuilder,
    best_first_paths,
)
from jetflow_tree.reference import brute_force, plain_heap

# Values that meet: equal ones, certainty, impossibility, and neighbours that a rounded sum with
# another value makes equal again.
STEPS = [0.0, -0.0, -0.1, -0.3, -1.0, -2.0, -50.0, -np.inf]
STEPS += [float(np.nextafter(-1.0, 0.0)), float(np.nextafter(-1.0, -2.0)), -1e-17, -3e-17]


@st.composite
def tables(draw, max_depth=3, max_width=3):
    depth = draw(st.integers(0, max_depth))
    width = draw(st.integers(1, max_width))
    parents = draw(st.sampled_from([1, width]))
    value = st.one_of(st.sampled_from(STEPS), st.floats(-30.0, 0.0))
    size = depth * parents * width
    values = draw(st.lists(value, min_size=size, max_size=size))
    names = draw(st.permutations(range(width)))
    tokens = np.array([[10 * d + name for name in names] for d in range(depth)], dtype=np.int64)
    return Candidates(
        tokens.reshape(depth, width), np.array(values, dtype=float).reshape(depth, parents, width)
    )


budgets = st.integers(1, 45)
builders = [BestFirst(), AllChildren(), AllChildren(width=2), Chain()]


def same(left: Tree, right: Tree) -> bool:
    return (
        left.tokens.tolist() == right.tokens.tolist()
        and left.parents.tolist() == right.parents.tolist()
        and left.depths.tolist() == right.depths.tolist()
        and left.scores.tolist() == right.scores.tolist()
    )


@settings(max_examples=250)
@given(tables(), budgets)
def test_best_first_is_the_top_of_every_possible_node(candidates, budget):
    assert same(BestFirst().build(99, candidates, budget), brute_force(99, candidates, budget))


@given(tables(max_depth=2, max_width=6), budgets)
def test_best_first_is_the_top_of_every_possible_node_when_wide(candidates, budget):
    assert same(BestFirst().build(99, candidates, budget), brute_force(99, candidates, budget))


@given(tables(), budgets, budgets)
def test_trees_are_nested_in_the_budget(candidates, one, other):
    small, large = sorted((one, other))
    whole = BestFirst().build(99, candidates, large)
    assert same(BestFirst().build(99, candidates, small), whole.trim(min(small, whole.num_nodes)))


@given(tables(), budgets)
def test_no_baseline_expects_more_tokens(candidates, budget):
    best = BestFirst().build(99, candidates, budget).expected_length()
    for builder in builders:
        tree = builder.build(99, candidates, budget)
        assert tree.expected_length() <= best + 1e-12


@given(tables(), budgets)
def test_every_builder_gives_a_valid_tree_of_possible_nodes(candidates, budget):
    for builder in builders:
        tree = builder.build(99, candidates, budget)
        assert tree.num_nodes <= budget
        assert np.isfinite(tree.scores).all()
        assert not np.signbit(tree.scores[tree.scores == 0.0]).any()
        Tree(tree.tokens, tree.parents, tree.depths, tree.scores)


@given(tables(max_width=4), budgets, st.integers(1, 6))
def test_max_children_is_best_first_on_the_best_children(candidates, budget, limit):
    kept = candidates.log_probs.copy()
    order = np.argsort(-kept, axis=2, kind="stable")[:, :, limit:]
    np.put_along_axis(kept, order, -np.inf, axis=2)
    capped = BestFirst(max_children=limit).build(99, candidates, budget)
    assert same(capped, brute_force(99, candidates.with_log_probs(kept), budget))


def sorted_children(candidates: Candidates):
    """The table as a callback; the order of siblings is the one BestFirst settles on."""
    index = [{int(t): i for i, t in enumerate(row)} for row in candidates.tokens]

    def children(path):
        depth = len(path)
        table = candidates.log_probs[depth]
        row = table[index[depth - 1][path[-1]] if path and len(table) > 1 else 0]
        for i in np.argsort(-row, kind="stable"):
            yield int(candidates.tokens[depth, i]), float(row[i])

    return children


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([-0.25, -0.5, -1.0, -4.0]), min_size=width, max_size=width),
            min_size=1,
            max_size=3,
        )
    ),
    budgets,
)
def test_the_callback_form_builds_the_same_tree(rows, budget):
    # Rows come sorted, so that a place in the callback's order is the candidate index.
    log_probs = -np.sort(-np.array(rows), axis=1)
    tokens = np.arange(log_probs.size).reshape(log_probs.shape)
    candidates = Candidates.marginal(tokens, log_probs)
    tree = best_first_paths(99, sorted_children(candidates), budget, candidates.depth)
    assert same(tree, BestFirst().build(99, candidates, budget))


def test_the_callback_may_depend_on_the_whole_path():
    def children(path):
        return [(2, -0.1), (1, -2.0)] if path == (1, 1) else [(1, -0.2), (2, -1.9)]

    tree = best_first_paths(0, children, 5, 3)
    assert [tuple(tree.tokens[list(tree.path(r))].tolist()) for r in range(5)] == [
        (), (1,), (1, 1), (1, 1, 2), (2,),
    ]  # fmt: skip


def test_the_callback_is_asked_lazily():
    asked, drawn = [], []

    def children(path):
        asked.append(path)
        for token in range(100):
            drawn.append((path, token))
            yield token, -1.0 - token

    best_first_paths(0, children, 4, 2)
    assert asked == [(), (0,), (1,)]
    assert len(drawn) <= 6


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1, float("nan"))], "got nan after 0"),
        ([(1, 0.5)], "got 0.5 after 0"),
        ([(1, -2.0), (2, -1.0)], r"got -1\.0 after -2\.0"),
        ([(1, -1.0), (1, -2.0)], "token 1 twice"),
    ],
)
def test_a_bad_callback_is_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        best_first_paths(0, lambda path: pairs, 8, 1)


def test_a_max_depth_of_zero_is_plain_decoding():
    tree = best_first_paths(7, lambda path: [(1, -0.1), (2, -1.0)], 8, 0)
    assert same(tree, Tree.root_only(7))


def test_a_negative_max_depth_is_refused():
    with pytest.raises(ValueError, match="max_depth must be a whole number, at least 0, got -1"):
        best_first_paths(0, lambda path: [(1, -1.0)], 8, -1)


def test_two_nodes_go_down_the_likely_path():
    two = Candidates.marginal([[5, 9], [3, 4]], [[-0.1, -2.4], [-0.1, -2.4]])
    best = BestFirst().build(7, two, 3)
    assert best.parents.tolist() == [-1, 0, 1]
    assert best.expected_length() - 1.0 == pytest.approx(1.72, abs=0.005)
    all_children = AllChildren().build(7, two, 3)
    assert all_children.parents.tolist() == [-1, 0, 0]
    assert all_children.expected_length() - 1.0 == pytest.approx(1.00, abs=0.005)


def test_all_children_falls_behind_where_the_head_is_sharp():
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(20):
        candidates = Candidates.from_logits(6.0 * rng.standard_normal((15, 100)), 7)
        wide = AllChildren(width=7).build(0, candidates, 16).expected_length() - 1.0
        best = BestFirst().build(0, candidates, 16).expected_length() - 1.0
        shares.append(wide / best)
    assert np.mean(shares) < 0.85


def test_siblings_whose_scores_round_together_come_in_index_order():
    """-1 and its neighbour differ, but not once -100 is added to them."""
    near = float(np.nextafter(-1.0, 0.0))
    table = np.array([[[-100.0, -np.inf, -np.inf]], [[-1.0, -1.0, near]]])
    candidates = Candidates(np.array([[0, 1, 2], [3, 4, 5]]), table)
    tree = BestFirst().build(9, candidates, 8)
    assert tree.tokens.tolist() == [9, 0, 3, 4, 5]
    assert BestFirst().build(9, candidates, 3).tokens.tolist() == [9, 0, 3]


def test_ties_are_settled_by_depth_then_by_the_path_of_indices():
    flat = Candidates.marginal([[4, 3], [2, 1]], np.zeros((2, 2)))
    tree = BestFirst().build(9, flat, 99)
    assert [tuple(tree.tokens[list(tree.path(r))].tolist()) for r in range(tree.num_nodes)] == [
        (), (4,), (3,), (4, 2), (4, 1), (3, 2), (3, 1),
    ]  # fmt: skip


def test_a_certain_chain_keeps_parents_before_children():
    certain = Candidates.marginal(np.arange(64)[:, None], np.zeros((64, 1)))
    tree = BestFirst().build(9, certain, 65)
    assert tree.parents.tolist() == list(range(-1, 64))


@pytest.mark.parametrize("builder", builders, ids=lambda b: type(b).__name__)
@pytest.mark.parametrize("budget", [0, -3])
def test_a_budget_without_room_for_the_root_is_refused(builder, budget):
    one = Candidates.marginal([[5]], [[-0.1]])
    with pytest.raises(ValueError, match=f"at least 1, got {budget}"):
        builder.build(7, one, budget)


def test_the_callback_form_refuses_the_same_budgets():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        best_first_paths(7, lambda path: [], 0, 3)


@pytest.mark.parametrize("builder", builders, ids=lambda b: type(b).__name__)
def test_budget_one_and_depth_zero_are_plain_decoding(builder):
    one = Candidates.marginal([[5]], [[-0.1]])
    none = Candidates(np.empty((0, 4), dtype=np.int64), np.empty((0, 1, 4)))
    for tree in (builder.build(7, one, 1), builder.build(7, none, 64)):
        assert tree.tokens.tolist() == [7]
        assert tree.parents.tolist() == [-1]


@pytest.mark.parametrize("builder", builders, ids=lambda b: type(b).__name__)
def test_impossible_candidates_never_become_nodes(builder):
    never = Candidates.marginal([[5, 6], [3, 4]], [[-1.0, -np.inf], [-np.inf, -np.inf]])
    assert builder.build(7, never, 64).tokens.tolist() == [7, 5]
    nothing = Candidates.marginal([[5, 6]], [[-np.inf, -np.inf]])
    assert builder.build(7, nothing, 64).tokens.tolist() == [7]


@pytest.mark.parametrize("builder", builders, ids=lambda b: type(b).__name__)
def test_a_negative_root_is_refused(builder):
    with pytest.raises(ValueError, match="whole number from 0, got -7"):
        builder.build(-7, Candidates.marginal([[5]], [[-0.1]]), 4)


def test_widths_above_the_candidates_are_clamped():
    candidates = Candidates.marginal([[5, 6]], [[-0.5, -1.0]])
    for builder in (AllChildren(width=7), BestFirst(max_children=7)):
        assert builder.build(7, candidates, 64).tokens.tolist() == [7, 5, 6]


def test_widths_below_one_are_refused():
    with pytest.raises(ValueError, match=r"width must be .* at least 1, got 0"):
        AllChildren(width=0)
    with pytest.raises(ValueError, match=r"max_children must be .* at least 1, got -2"):
        BestFirst(max_children=-2)
    with pytest.raises(ValueError, match=r"max_children must be a whole number, .* got 1.5"):
        BestFirst(max_children=1.5)


def test_a_wide_flat_depth_gives_its_leaves():
    """Depth 1, width 4, 4 leaves."""
    candidates = Candidates.marginal([[1, 2, 3, 4]], np.log([[0.4, 0.3, 0.2, 0.1]]))
    tree = BestFirst().build(0, candidates, 5)
    assert tree.children(0) == (1, 2, 3, 4)
    assert tree.max_depth == 1


@given(tables(), budgets)
def test_the_chain_follows_the_best_child(candidates, budget):
    tree = Chain().build(99, candidates, budget)
    assert tree.parents.tolist() == list(range(-1, tree.num_nodes - 1))
    best_single = BestFirst(max_children=1).build(99, candidates, budget)
    assert same(tree, best_single)


@given(tables(), budgets)
def test_the_yardstick_expects_as_many_tokens(candidates, budget):
    """The plain heap may settle ties otherwise, so only the expected length must agree."""
    plain = plain_heap(99, candidates, budget).expected_length()
    assert BestFirst().build(99, candidates, budget).expected_length() == pytest.approx(plain)


def test_a_scoring_is_applied_before_building():
    two = Candidates.marginal([[5, 9], [3, 4]], [[-0.1, -2.4], [-0.1, -2.4]])

    def swapped(candidates):
        return candidates.with_log_probs(candidates.log_probs[:, :, ::-1])

    assert BestFirst(scoring=swapped).build(7, two, 3).tokens.tolist() == [7, 9, 4]


@pytest.mark.parametrize("builder", [BestFirst(), AllChildren(), Chain()])
@pytest.mark.parametrize("value", [2.5, float("nan"), "4", None, True, 2**63])
def test_what_is_no_whole_number_is_refused_alike(builder: TreeBuilder, value: Any) -> None:
    two = Candidates.marginal([[5, 9], [3, 4]], [[-0.1, -2.4], [-0.1, -2.4]])
    with pytest.raises(ValueError, match="the root must be a token, a whole number from 0"):
        builder.build(value, two, 4)
    if value != 2**63:
        with pytest.raises(ValueError, match="must be a whole number, at least 1"):
            builder.build(7, two, value)
        with pytest.raises(ValueError, match="max_depth must be a whole number"):
            best_first_paths(7, lambda path: [(1, -0.5)], 4, value)
    with pytest.raises(ValueError, match=r"must be token ids, got 1\.5"):
        best_first_paths(7, lambda path: [(1.5, -0.5)], 4, 2)  # type: ignore[list-item]
