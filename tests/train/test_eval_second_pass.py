"""Trees of a second pass: with an oracle they are those of the exact conditionals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from jetflow_train.evaluation.policies import (
    SECOND_PASS,
    Policy,
    exact_policies,
    second_pass_policies,
)
from jetflow_train.evaluation.second_walk import (
    Asked,
    first_rows,
    second_tree,
    walk_twice_drafted,
)
from jetflow_train.evaluation.walk import Drafts, LazyCandidates, StoredText, Walk, walk
from jetflow_tree import BestFirst, Candidates, Tree
from numpy.typing import NDArray

CPU = torch.device("cpu")
WORDS, DEPTH = 4, 3
WHOLE = 1 + 4 + 16 + 64


class Oracle:
    """A language whose next word depends on the last one, and a head that knows it exactly."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.chance = rng.dirichlet(np.full(WORDS, 0.4), size=WORDS) + 1e-3
        self.chance /= self.chance.sum(axis=1, keepdims=True)

    def first_pass(self, text: StoredText) -> Drafts:
        """Each depth's own distribution, that of all paths mixed."""
        powers = [np.linalg.matrix_power(self.chance, depth) for depth in range(1, DEPTH + 1)]
        rows = np.stack([[power[root] for power in powers] for root in _roots(text)])
        order = np.argsort(-rows, axis=2, kind="stable")
        table = np.log(np.take_along_axis(rows, order, axis=2))
        return Drafts(order.astype(np.int64), table[:, :, None], 10_000)

    def conditional(self, text: StoredText) -> Drafts:
        """What a path term that is right would say."""
        count = len(text.answer)
        table = np.broadcast_to(np.log(self.chance), (count, DEPTH, WORDS, WORDS)).copy()
        table[:, 0] = np.log(self.chance[_roots(text)])[:, None]
        tokens = np.broadcast_to(np.arange(WORDS), (count, DEPTH, WORDS))
        return Drafts(tokens, table, 10_000)

    def children(self, asked: Sequence[Asked]) -> list[Candidates]:
        """The second pass."""
        rows = [self.chance[each.tree.tokens] for each in asked]
        order = [np.argsort(-some, axis=1, kind="stable") for some in rows]
        return [
            Candidates.marginal(places, np.log(np.take_along_axis(some, places, axis=1)))
            for some, places in zip(rows, order, strict=True)
        ]

    def texts(self, count: int, length: int) -> list[StoredText]:
        rng, found = np.random.default_rng(5), []
        for _ in range(count):
            words = [int(rng.integers(WORDS)), int(rng.integers(WORDS))]
            while len(words) < 2 + length:
                words.append(int(rng.choice(WORDS, p=self.chance[words[-1]])))
            found.append(StoredText(tokens=np.asarray(words), prompt_len=2, limit=length))
        return found


def _roots(text: StoredText) -> NDArray[np.int64]:
    return text.tokens[text.first : text.first + len(text.answer)]


class Everything:
    """A builder whose trees hold every node, so that a first tree limits nothing."""

    def build(self, root: int, candidates: Candidates, budget: int) -> Tree:
        return BestFirst().build(root, candidates, max(budget, WHOLE))


def over_everything(budget: int) -> Policy:
    return Policy(kind=SECOND_PASS, budget=budget, builder=Everything())


def walked(oracle: Oracle, texts: Sequence[StoredText], policy: Policy) -> list[Walk]:
    drafts = [oracle.first_pass(text) for text in texts]
    return walk_twice_drafted(texts, drafts, policy, oracle.children)


def tau(walks: Sequence[Walk]) -> float:
    return sum(sum(each.sizes) for each in walks) / sum(len(each.sizes) for each in walks)


@pytest.mark.parametrize("budget", [2, 6, 11])
def test_over_whole_first_trees_an_oracles_trees_are_those_of_the_exact_conditionals(
    budget: int,
) -> None:
    oracle = Oracle()
    texts = oracle.texts(12, 40)
    mine = walked(oracle, texts, over_everything(budget))
    exact = exact_policies([budget], DEPTH)[1]
    theirs = [walk(text, LazyCandidates(text, oracle.conditional(text)), exact) for text in texts]
    assert [each.sizes for each in mine] == [each.sizes for each in theirs]
    assert [each.stats.rows for each in mine] == [each.stats.rows for each in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.stats.expected == pytest.approx(other.stats.expected)
        assert sum(one.by_candidate) == one.stats.accepted == sum(one.sizes) - len(one.sizes)
    once = [walk(text, LazyCandidates(text, oracle.first_pass(text)), exact) for text in texts]
    assert [each.sizes for each in once] != [each.sizes for each in mine] or budget == 2


def test_scores_of_both_passes_are_read_at_the_temperature_of_the_first() -> None:
    oracle = Oracle()
    texts = oracle.texts(4, 20)
    exact, expected = exact_policies([6], DEPTH)[1], []
    for temperature in (1.0, 0.5):
        firsts, conditionals = (
            [replace(make(text), score_temperature=temperature) for text in texts]
            for make in (oracle.first_pass, oracle.conditional)
        )
        mine = walk_twice_drafted(texts, firsts, over_everything(6), oracle.children)
        for text, drafts, found in zip(texts, conditionals, mine, strict=True):
            other = walk(text, LazyCandidates(text, drafts), exact)
            assert found.stats.expected == pytest.approx(other.stats.expected)
        expected.append(sum(each.stats.expected for each in mine))
    assert expected[1] > expected[0] + 1


@pytest.mark.parametrize("budget", [4, 8, 16])
def test_the_oracles_scores_are_the_exact_chances_of_paths(budget: int) -> None:
    oracle, expected, marginal = Oracle(1), 0.0, 0.0
    for root in range(WORDS):
        text = StoredText(tokens=np.asarray([0, root, 0]), prompt_len=2, limit=9)
        drafted = LazyCandidates(text, oracle.first_pass(text)).at(1)
        first = BestFirst().build(root, drafted, budget)
        (below,) = oracle.children([Asked(0, 1, first)])
        tree = second_tree(first, below, budget, DEPTH)
        assert tree.num_nodes == budget
        for row in range(1, budget):
            path = [root, *tree.tokens[list(tree.path(row))].tolist()]
            chances = [oracle.chance[a, b] for a, b in pairwise(path)]
            assert tree.scores[row] == pytest.approx(np.log(chances).sum())
        expected += tree.expected_length()
        exact = LazyCandidates(text, oracle.conditional(text)).at(1)
        best = BestFirst().build(root, exact, budget)
        assert tree.expected_length() <= best.expected_length() + 1e-9
        true = second_tree(first, below, 10**4, DEPTH)
        kept = {tuple(first.tokens[list(first.path(row))]) for row in range(1, budget)}
        marginal += 1 + sum(
            float(np.exp(true.scores[row]))
            for row in range(1, true.num_nodes)
            if tuple(true.tokens[list(true.path(row))]) in kept
        )
    # Under the true chances the second tree is never worse than the first.
    assert expected > marginal - 1e-9
    assert budget == 4 or expected > marginal + 1e-3


def test_knowing_the_path_gives_longer_rounds() -> None:
    oracle = Oracle()
    texts = oracle.texts(40, 60)
    exact = exact_policies([8], DEPTH)[1]
    once, best = (
        [walk(text, LazyCandidates(text, make(text)), exact) for text in texts]
        for make in (oracle.first_pass, oracle.conditional)
    )
    assert (
        tau(once) + 0.03
        < tau(walked(oracle, texts, second_pass_policies([8])[0]))
        <= tau(best) + 0.02
    )


@examples(max_examples=60)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 9), budget=st.integers(1, 14))
def test_the_final_tree_is_the_best_of_what_is_known(seed: int, rows: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, parents = [9], [-1]
    while len(tokens) < rows:
        parent, token = int(rng.integers(len(tokens))), int(rng.integers(4))
        if (parent, token) not in list(zip(parents, tokens, strict=True)):
            parents.append(parent)
            tokens.append(token)
    first = Tree.from_parents(tokens, parents)
    children = np.stack([rng.permutation(4)[:3] for _ in range(rows)])
    table = -np.sort(rng.exponential(size=(rows, 3)) + 0.3, axis=1)
    below = Candidates.marginal(children, table)
    depth = int(rng.integers(0, 5))
    tree = second_tree(first, below, budget, depth)
    # All nodes that can be known: children of first nodes that are children themselves.
    known: dict[tuple[int, ...], float] = {(): 0.0}
    row_of = {tuple(first.tokens[list(first.path(r))].tolist()): r for r in range(rows)}
    for row in range(rows):
        path = tuple(first.tokens[list(first.path(row))].tolist())
        if path in known and len(path) < depth:
            for token, score in zip(children[row].tolist(), table[row].tolist(), strict=True):
                known[(*path, token)] = known[path] + score
    found = {
        tuple(tree.tokens[list(tree.path(r))].tolist()): float(tree.scores[r])
        for r in range(tree.num_nodes)
    }
    assert len(found) == min(budget, len(known))
    assert found == {path: pytest.approx(known[path]) for path in found}
    left = [score for path, score in known.items() if path not in found]
    assert not left or max(left) <= min(found.values()) + 1e-12
    for path in found:
        assert first_rows(first, path) == [row_of[path[:d]] for d in range(len(path))]
