"""Acceptance: the walk keeps what the target picks, and sampling keeps the target's law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_tree import Accepted, BestFirst, Candidates, Tree, lazy_walk, sample_walk, walk
from jetflow_tree.reference import walk_by_children

TARGET = np.array([0.4, 0.3, 0.2, 0.1])
DRAFT = np.array([0.5, 0.3, 0.15, 0.05])


@st.composite
def trees(draw, max_nodes=30, vocabulary=4):
    """Random trees over few tokens, so that walks often go deep."""
    parents, tokens = [-1], [0]
    used: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, max_nodes))):
        link = (
            draw(st.integers(0, len(parents) - 1)),
            draw(st.integers(0, vocabulary - 1)),
        )
        if link not in used:
            used.add(link)
            parents.append(link[0])
            tokens.append(link[1])
    return Tree.from_parents(tokens, parents)


@given(trees(), st.data())
def test_the_walk_is_the_step_by_step_one(tree, data):
    size = tree.num_nodes
    picks = np.array(data.draw(st.lists(st.integers(0, 3), min_size=size, max_size=size)))
    accepted = walk(tree, picks)
    nodes, correction = walk_by_children(tree, picks)
    assert accepted.nodes == nodes
    assert accepted.correction == correction
    assert accepted.tokens == tuple(tree.tokens[list(nodes)].tolist())
    assert accepted.emitted == (*accepted.tokens, correction)


@given(trees(), st.integers(0, 2**32))
def test_only_rows_on_the_walk_are_asked_each_once(tree, seed):
    rng = np.random.default_rng(seed)
    asked = []

    def pick(row):
        asked.append(row)
        return int(rng.integers(4))

    accepted = lazy_walk(tree, pick)
    assert asked == [0, *accepted.nodes]


@given(trees(), st.integers(0, 2**32))
def test_output_never_depends_on_what_was_drafted(tree, seed):
    """A target that is a function of the path emits its own text whatever the tree."""

    def target(path):
        return int(np.random.default_rng([seed, *path]).integers(4))

    text: list[int] = []
    while len(text) < 3:
        text.append(target(tuple(text)))
    accepted = lazy_walk(tree, lambda row: target(tuple(tree.tokens[list(tree.path(row))])))
    plain: list[int] = []
    while len(plain) < len(accepted.emitted):
        plain.append(target(tuple(plain)))
    assert list(accepted.emitted) == plain


def test_nothing_after_a_rejection_counts():
    """Right, wrong, right, right: one drafted token is kept, not three."""
    chain = Tree.from_parents([0, 1, 2, 3, 4], [-1, 0, 1, 2, 3])
    accepted = walk(chain, [1, 9, 3, 4, 5])
    assert accepted == Accepted(nodes=(1,), tokens=(1,), correction=9)


def test_a_full_acceptance_ends_with_the_correction_of_the_leaf():
    chain = Tree.from_parents([0, 1, 2], [-1, 0, 1])
    assert walk(chain, [1, 2, 3]) == Accepted((1, 2), (1, 2), 3)


def test_a_root_alone_is_plain_decoding():
    assert walk(Tree.root_only(5), [8]) == Accepted((), (), 8)


@pytest.mark.parametrize("picks", [[1], [1, 2, 3], [[1, 2]], [1.0, 2.0]])
def test_picks_must_be_one_integer_a_row(picks):
    with pytest.raises(ValueError, match="picks must be 2 integers"):
        walk(Tree.from_parents([0, 1], [-1, 0]), picks)


def chi_square(counts, law):
    expected = counts.sum() * law
    return float(((counts - expected) ** 2 / expected).sum())


def drafted_tree():
    """The two likeliest children at two depths, of a draft that is not the target."""
    log_probs = np.log(np.array([DRAFT[:2], DRAFT[:2]]))
    return BestFirst().build(0, Candidates.marginal([[0, 1], [0, 1]], log_probs), 7)


def test_sampling_at_each_node_has_the_targets_law():
    """The joint law of the first two tokens; 15 degrees of freedom, 44.3 is passed once in 1e4."""
    tree = drafted_tree()
    second = np.array([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1], TARGET, TARGET])
    probs = np.empty((tree.num_nodes, 4))
    for row in range(tree.num_nodes):
        path = tree.tokens[list(tree.path(row))]
        probs[row] = TARGET if not len(path) else second[path[0]] if len(path) == 1 else TARGET
    rng = np.random.default_rng(7)
    counts = np.zeros((4, 4))
    for _ in range(20_000):
        emitted = list(sample_walk(tree, probs, rng).emitted)
        if len(emitted) == 1:
            # The round ended at the first token; the next round starts below it.
            emitted.append(int(rng.choice(4, p=second[emitted[0]])))
        counts[emitted[0], emitted[1]] += 1
    assert chi_square(counts, TARGET[:, None] * second) < 44.3


def test_the_ratio_rule_on_fixed_children_has_another_law():
    """Why no p/q rule is used: on children that were not sampled it is far off."""
    rng = np.random.default_rng(7)
    draws = 400_000
    emitted = np.full(draws, -1)
    law = np.tile(TARGET, (draws, 1))
    for child in (0, 1):
        ratio = np.minimum(1.0, law[:, child] / DRAFT[child])
        taken = (emitted < 0) & (rng.random(draws) < ratio)
        emitted[taken] = child
        left = np.maximum(law - DRAFT, 0.0)
        law = left / left.sum(axis=1, keepdims=True)
    open_rows = np.flatnonzero(emitted < 0)
    steps = np.cumsum(law[open_rows], axis=1)
    emitted[open_rows] = (rng.random((len(open_rows), 1)) > steps).sum(axis=1)
    shares = np.bincount(emitted, minlength=4) / draws
    assert shares == pytest.approx([0.801, 0.0, 0.087, 0.112], abs=0.003)
    assert chi_square(shares * draws, TARGET) > 1e4


def test_a_certain_target_samples_greedily():
    tree = drafted_tree()
    probs = np.zeros((tree.num_nodes, 4))
    probs[:, 1] = 1.0
    accepted = sample_walk(tree, probs, np.random.default_rng(0))
    assert accepted.emitted == (1, 1, 1)


def test_tokens_without_probability_are_never_drawn():
    class Ends:
        """The smallest and the largest number a generator can give."""

        def __init__(self, value):
            self.value = value

        def random(self):
            return self.value

    probs = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]])
    ends = [sample_walk(Tree.root_only(0), probs, Ends(v)) for v in (0.0, 1.0 - 2**-53)]
    assert [accepted.correction for accepted in ends] == [1, 3]


def test_the_same_seed_gives_the_same_walk():
    tree = drafted_tree()
    probs = np.tile(TARGET, (tree.num_nodes, 1))
    walks = [
        [sample_walk(tree, probs, rng) for _ in range(20)]
        for rng in (np.random.default_rng(3), np.random.default_rng(3))
    ]
    assert walks[0] == walks[1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([0.5, 0.2], "row 0 are no distribution"),
        ([1.5, -0.5], "row 0 are no distribution"),
        ([np.nan, 1.0], "row 0 are no distribution"),
    ],
)
def test_what_is_no_distribution_is_refused(row, message):
    with pytest.raises(ValueError, match=message):
        sample_walk(Tree.root_only(0), [row], np.random.default_rng(0))


def test_probs_must_have_a_row_a_node():
    with pytest.raises(ValueError, match=r"probs must be \[1, V\]"):
        sample_walk(Tree.root_only(0), [[0.5, 0.5]] * 2, np.random.default_rng(0))
