"""One budget over many requests equals the top nodes of all requests together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_tree import BestFirst, Candidates, Tree, depth_discounted, share_budget
from jetflow_tree.reference import every_node

VALUES = [0.0, -0.1, -0.5, -1.0, -1.0, -3.0, -np.inf]


@st.composite
def tables(draw):
    depth, width = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    parents = draw(st.sampled_from([1, width]))
    size = depth * parents * width
    values = draw(
        st.lists(
            st.one_of(st.sampled_from(VALUES), st.floats(-9.0, 0.0)), min_size=size, max_size=size
        )
    )
    tokens = np.arange(depth * width).reshape(depth, width)
    return Candidates(tokens, np.array(values, dtype=float).reshape(depth, parents, width))


batches = st.lists(tables(), min_size=1, max_size=4)


def paths(tree: Tree) -> list[tuple[tuple[int, ...], float]]:
    return [
        (tuple(tree.tokens[list(tree.path(row))].tolist()), float(tree.scores[row]))
        for row in range(1, tree.num_nodes)
    ]


def brute_force(tables, budget):
    """Every node of every request in one sorted list."""
    ranked = sorted(
        (-score, len(path), request, path)
        for request, table in enumerate(tables)
        for score, path in every_node(table)
    )[: budget - len(tables)]
    kept = [[] for _ in tables]
    for negated, _, request, path in ranked:
        tokens = tuple(int(tables[request].tokens[d, index]) for d, index in enumerate(path))
        kept[request].append((tokens, -negated))
    return kept


@given(batches, st.integers(0, 40))
def test_the_shared_trees_are_the_top_nodes_of_the_batch(tables, spare):
    roots = list(range(len(tables)))
    trees = share_budget(roots, tables, len(tables) + spare)
    assert [paths(tree) for tree in trees] == brute_force(tables, len(tables) + spare)
    for root, tree in zip(roots, trees, strict=True):
        assert tree.tokens[0] == root
        Tree(tree.tokens, tree.parents, tree.depths, tree.scores)


@given(tables(), st.integers(1, 40))
def test_one_request_alone_gets_the_best_first_tree(table, budget):
    (shared,) = share_budget([9], [table], budget)
    alone = BestFirst().build(9, table, budget)
    for name in ("tokens", "parents", "depths", "scores"):
        assert getattr(shared, name).tolist() == getattr(alone, name).tolist()
        assert getattr(shared, name).dtype == getattr(alone, name).dtype


@given(batches, st.integers(0, 40))
def test_every_shared_tree_is_the_best_of_its_size(tables, spare):
    trees = share_budget([9] * len(tables), tables, len(tables) + spare)
    for tree, table in zip(trees, tables, strict=True):
        assert paths(tree) == paths(BestFirst().build(9, table, tree.num_nodes))


@given(batches, st.integers(0, 30), st.data())
def test_limits_cap_a_request_and_leave_its_rows_to_the_others(tables, spare, data):
    size = len(tables)
    limits = data.draw(st.lists(st.integers(1, 8), min_size=size, max_size=size))
    trees = share_budget([9] * size, tables, size + spare, limits=limits)
    kept = [[] for _ in tables]
    left = spare
    for request, node in (
        (request, (tokens, score))
        for score, _, request, tokens in sorted(
            (-score, len(path), request, path)
            for request, table in enumerate(tables)
            for score, path in every_node(table)
        )
        for tokens in [tuple(int(tables[request].tokens[d, i]) for d, i in enumerate(tokens))]
    ):
        if left and len(kept[request]) + 1 < limits[request]:
            kept[request].append((node[0], -node[1]))
            left -= 1
    assert [paths(tree) for tree in trees] == kept


@given(batches, st.lists(st.floats(0.1, 5.0), min_size=60, max_size=60), st.floats(0.0, 3.0))
def test_a_cost_curve_stops_the_batch_at_its_best_size(tables, times, fixed):
    size = len(tables)

    def cost(rows):
        return times[rows - 1]

    def rate(trees):
        expected = sum(tree.expected_length() for tree in trees)
        return expected / (fixed + cost(sum(tree.num_nodes for tree in trees)))

    stopped = share_budget([9] * size, tables, size + 20, cost=cost, fixed=fixed)
    rates = [rate(share_budget([9] * size, tables, size + spare)) for spare in range(21)]
    assert rate(stopped) == pytest.approx(max(rates))


def test_a_sure_request_gets_the_rows_of_an_unsure_one():
    sure = Candidates.marginal(np.arange(8)[:, None], np.full((8, 1), -0.01))
    unsure = Candidates.marginal(np.arange(8)[:, None], np.full((8, 1), -5.0))
    rows = [tree.num_nodes for tree in share_budget([0, 1], [unsure, sure], 8)]
    assert rows == [1, 7]


def test_widths_and_depths_may_differ():
    rng = np.random.default_rng(0)
    marginal = Candidates.from_logits(rng.standard_normal((2, 9)), 5)
    table = np.log(rng.dirichlet(np.ones(4), size=(3, 3)))[:, :, :3]
    conditioned = Candidates(np.arange(9).reshape(3, 3), table)
    trees = share_budget([0, 1], [marginal, conditioned], 30)
    assert [paths(tree) for tree in trees] == brute_force([marginal, conditioned], 30)


def test_a_scoring_applies_to_every_request():
    table = Candidates.marginal([[1], [2]], [[-0.5], [-0.5]])
    trees = share_budget([0, 0], [table, table], 6, scoring=depth_discounted(0.5))
    assert trees[1].scores.tolist() == pytest.approx([0.0, -0.5 + np.log(0.5), -1 + np.log(0.25)])


def test_no_request_gives_no_tree():
    assert share_budget([], [], 4) == []


def test_what_does_not_fit_is_refused():
    one = Candidates.marginal([[1]], [[-0.5]])
    with pytest.raises(ValueError, match="the roots of all 2 requests, got 1"):
        share_budget([0, 1], [one, one], 1)
    with pytest.raises(ValueError, match="2 roots need as many candidates and limits, got 1 and 2"):
        share_budget([0, 1], [one], 4)
    with pytest.raises(ValueError, match="got 1 and 3"):
        share_budget([0], [one], 4, limits=[1, 2, 3])
    with pytest.raises(ValueError, match=r"limits must be .* at least 1, got 0"):
        share_budget([0], [one], 4, limits=[0])
    with pytest.raises(ValueError, match=r"limits must be a whole number, .* got nan"):
        share_budget([0], [one], 4, limits=[float("nan")])
    with pytest.raises(ValueError, match="fixed must be at least 0"):
        share_budget([0], [one], 4, cost=lambda rows: 1.0, fixed=-1.0)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        share_budget([0], [one], 0)
