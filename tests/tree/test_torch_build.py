"""The device builder equals the heap, in order, on everything that the heap accepts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jetflow_tree import BestFirst, Candidates, Tree
from jetflow_tree.torch import best_first, stack_candidates, to_trees

FEW = settings(max_examples=150, deadline=None)


@st.composite
def candidate_tables(draw: st.DrawFn, depth: int, width: int) -> Candidates:
    """Small tables full of ties: of equal rows, of sums across depths, of certain candidates."""
    parents = draw(st.sampled_from([1, width]))
    grid = draw(
        hnp.arrays(np.int64, (depth, parents, width), elements=st.integers(0, 3), fill=st.nothing())
    )
    # Shares of a whole: a lone candidate has probability 1, a child ties with its parent.
    with np.errstate(divide="ignore"):
        shares = np.log(grid / np.maximum(grid.sum(-1, keepdims=True), 1))
    log_probs = draw(
        st.sampled_from(
            [
                shares,
                # Multiples of a half add exactly: nodes of different depths tie.
                np.where(grid == 0, -np.inf, -1.0 - 0.5 * grid),
                # Siblings that differ in their last bit tie once a parent's score is added.
                -1.5 + 2.0**-52 * grid,
            ]
        )
    )
    tokens = np.stack([draw(st.permutations(range(width))) for _ in range(depth)])
    return Candidates(tokens=np.asarray(tokens, dtype=np.int64), log_probs=log_probs)


def assert_same(found: Tree, expected: Tree) -> None:
    for name in ("tokens", "parents", "depths", "scores"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


@FEW
@given(
    data=st.data(),
    shapes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3),
    budget=st.integers(1, 24),
)
def test_equals_the_heap_in_order_on_ragged_batches(data, shapes, budget):
    candidates = [data.draw(candidate_tables(*shape)) for shape in shapes]
    live = [data.draw(st.integers(1, budget)) for _ in shapes]
    roots = list(range(100, 100 + len(shapes)))
    trees = best_first(
        *stack_candidates(candidates, device="cpu"),
        torch.tensor(roots),
        budget,
        live_budgets=torch.tensor(live),
    )
    assert trees.valid.all()
    for found, root, each, rows in zip(to_trees(trees), roots, candidates, live, strict=True):
        assert_same(found, BestFirst().build(root, each, rows))


@pytest.mark.parametrize("conditional", [False, True])
@pytest.mark.parametrize("budget", [3, 6, 20])
def test_equals_the_heap_when_nodes_of_different_parents_tie(conditional, budget):
    """Sums of halves tie across branches and depths; a cut through such ties must be the heap's."""
    rng = np.random.default_rng(budget)
    depth, width = 4, 3
    steps = rng.integers(0, 4, size=(60, depth, width if conditional else 1, width))
    tokens = np.tile(np.arange(width), (depth, 1))
    tables = [Candidates(tokens=tokens, log_probs=-0.5 * each) for each in steps]
    trees = best_first(
        *stack_candidates(tables, device="cpu"), torch.zeros(60, dtype=torch.int64), budget
    )
    for found, table in zip(to_trees(trees), tables, strict=True):
        assert_same(found, BestFirst().build(0, table, budget))


@pytest.mark.parametrize("conditional", [False, True])
def test_equals_the_heap_at_real_sizes(conditional):
    rng = np.random.default_rng(0)
    depth, width, budget = 16, 16, 256
    tables = []
    for scale in (0.5, 3.0, 6.0):
        logits = scale * rng.normal(size=(depth, width if conditional else 1, width + 1))
        log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        tokens = np.stack([rng.permutation(1000)[:width] for _ in range(depth)])
        tables.append(Candidates(tokens=tokens, log_probs=log_probs[..., :width]))
    trees = best_first(*stack_candidates(tables, device="cpu"), torch.arange(3), budget)
    for root, (found, table) in enumerate(zip(to_trees(trees), tables, strict=True)):
        assert found.num_nodes == budget
        assert_same(found, BestFirst().build(root, table, budget))


@pytest.mark.parametrize("budget", [1, 2, 7, 64, 200])
@pytest.mark.parametrize("log_prob", [-1.5, 0.0])
def test_all_tied_tables_and_chains(budget, log_prob):
    width = 1 if log_prob == 0.0 else 4
    table = Candidates.marginal(np.tile(np.arange(width), (3, 1)), np.full((3, width), log_prob))
    (found,) = to_trees(
        best_first(*stack_candidates([table], device="cpu"), torch.tensor([9]), budget)
    )
    expected = BestFirst().build(9, table, budget)
    assert found.num_nodes == min(budget, 4 if width == 1 else 1 + 4 + 16 + 64)
    assert_same(found, expected)


def test_nothing_reachable_is_a_root_only_tree():
    tokens = torch.zeros(1, 3, 2, dtype=torch.int64)
    never = torch.full((1, 3, 1, 2), -torch.inf)
    trees = best_first(tokens, never, torch.tensor([5]), 4)
    assert trees.valid.tolist() == [True]
    assert_same(to_trees(trees)[0], Tree.root_only(5))


@pytest.mark.parametrize("depth", [0, 2])
def test_no_depth_or_no_budget_is_a_root_only_tree(depth):
    tokens = torch.zeros(2, depth, 1, dtype=torch.int64)
    log_probs = torch.full((2, depth, 1, 1), -0.1)
    trees = best_first(tokens, log_probs, torch.tensor([5, 6]), 1 if depth else 3)
    for found, root in zip(to_trees(trees), (5, 6), strict=True):
        assert_same(found, Tree.root_only(root))


@pytest.mark.parametrize("bad", [float("nan"), 0.25, float("inf")])
def test_a_request_outside_the_contract_is_flagged_and_leaves_its_neighbours_alone(bad):
    tokens = torch.arange(4).expand(3, 2, 4).contiguous()
    log_probs = torch.full((3, 2, 4, 4), -1.5)
    clean = to_trees(best_first(tokens, log_probs, torch.tensor([7, 8, 9]), 8))
    log_probs[1, 1, 2, 3] = bad
    trees = best_first(tokens, log_probs, torch.tensor([7, 8, 9]), 8)
    assert trees.valid.tolist() == [True, False, True]
    first, flagged, last = to_trees(trees)
    assert_same(flagged, Tree.root_only(8))
    assert_same(first, clean[0])
    assert_same(last, clean[2])


@pytest.mark.parametrize("token", [-1, 3])
def test_a_negative_or_repeated_token_is_flagged_unless_it_can_never_be_a_node(token):
    tokens = torch.arange(4).repeat(2, 2, 1)
    tokens[:, 1, 0] = token
    log_probs = torch.full((2, 2, 4, 4), -1.5)
    log_probs[1, 1, :, 0] = -torch.inf
    trees = best_first(tokens, log_probs, torch.tensor([7, 8]), 30)
    assert trees.valid.tolist() == [False, True]
    assert trees.num_nodes.tolist() == [1, 1 + 4 + 4 * 3]


def test_a_live_budget_outside_its_range_is_flagged():
    tokens = torch.arange(4).expand(4, 2, 4).contiguous()
    log_probs = torch.full((4, 2, 1, 4), -1.5)
    live = torch.tensor([0, 1, 8, 9])
    trees = best_first(tokens, log_probs, torch.arange(4), 8, live_budgets=live)
    assert trees.valid.tolist() == [False, True, True, False]
    assert trees.num_nodes.tolist() == [1, 1, 8, 1]


def test_float32_scores_keep_the_tree_well_formed():
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(4, 8, 1, 8, generator=generator).log_softmax(-1)
    tokens = torch.arange(8).expand(4, 8, 8).contiguous()
    trees = best_first(tokens, log_probs, torch.arange(4), 64, score_dtype=torch.float32)
    assert trees.scores.dtype == torch.float32
    assert [tree.num_nodes for tree in to_trees(trees)] == [64] * 4


def test_bad_arguments_are_refused_before_any_work():
    tokens = torch.zeros(2, 3, 4, dtype=torch.int64)
    log_probs = torch.full((2, 3, 1, 4), -2.0)
    roots = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"budget must be at least 1 .* got 0"):
        best_first(tokens, log_probs, roots, 0)
    with pytest.raises(ValueError, match=r"tokens must be int64, got torch\.int32"):
        best_first(tokens.int(), log_probs, roots, 4)
    with pytest.raises(ValueError, match="1 or 4 parent rows a depth, got 2"):
        best_first(tokens, log_probs.expand(2, 3, 2, 4), roots, 4)
    with pytest.raises(ValueError, match="log_probs must be"):
        best_first(tokens, log_probs[:, :, 0], roots, 4)
    with pytest.raises(ValueError, match="log_probs must be floating"):
        best_first(tokens, log_probs.long(), roots, 4)
    with pytest.raises(ValueError, match=r"roots must be \[2\], got \[1\]"):
        best_first(tokens, log_probs, roots[:1], 4)
    with pytest.raises(ValueError, match="live_budgets must be int64"):
        best_first(tokens, log_probs, roots, 4, live_budgets=roots.float())
    with pytest.raises(ValueError, match="score_dtype"):
        best_first(tokens, log_probs, roots, 4, score_dtype=torch.float16)
    with pytest.raises(ValueError, match=r"\[R, D, K\]"):
        best_first(tokens[0], log_probs, roots, 4)
    with pytest.raises(ValueError, match="at least 1 candidate"):
        best_first(tokens[..., :0], log_probs[..., :0], roots, 4)
