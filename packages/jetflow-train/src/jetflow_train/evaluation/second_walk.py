"""Walks whose trees the head has read once more: many texts side by side, round after round.

A round grows a first tree as ever, asks what follows each of its nodes, and grows the final tree of
the same budget from these answers. A node that the first tree does not hold has no known children
and ends its branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from jetflow_tree import Candidates, Scoring, Tree, best_first_paths, calibrated

from jetflow_train.evaluation.policies import Policy
from jetflow_train.evaluation.walk import Drafts, LazyCandidates, Rounds, StoredText, Walk


class Asked(NamedTuple):
    """A first tree whose nodes' children are wanted."""

    text: int
    """Number of the text."""
    place: int
    """Of the root in it."""
    tree: Tree


Children = Callable[[Sequence[Asked]], list[Candidates]]
"""For each tree a table whose rows are its nodes in place of depths: row i holds the children of
node i, best first, each with its log-probability."""


def walk_twice_drafted(
    texts: Sequence[StoredText], drafts: Sequence[Drafts], policy: Policy, children: Children
) -> list[Walk]:
    """Rounds of decoding ``texts``, each round's tree grown from a second pass.

    Args:
        texts: what is decoded.
        drafts: the first pass's candidates at each root of each text.
        policy: grows the first trees, and gives the budget of both.
        children: the second pass.
    """
    candidates = [LazyCandidates(*pair) for pair in zip(texts, drafts, strict=True)]
    rounds = [Rounds(text) for text in texts]
    while live := [i for i, each in enumerate(rounds) if not each.over]:
        drafted = [candidates[i].at(rounds[i].at) for i in live]
        firsts = [policy.build(rounds[i].root, each) for i, each in zip(live, drafted, strict=True)]
        below = children(
            [Asked(i, rounds[i].at, tree) for i, tree in zip(live, firsts, strict=True)]
        )
        for i, each, first, found in zip(live, drafted, firsts, below, strict=True):
            known = _scored(found, drafts[i].score_temperature)
            grown = second_tree(first, known, policy.budget, each.depth)
            accepted = rounds[i].take(grown)
            rows = first_rows(first, accepted.tokens)
            rounds[i].count(known, rows, accepted.tokens)
    return [each.found for each in rounds]


def _scored(found: Candidates, temperature: float) -> Candidates:
    """``found`` read as sharply as the first pass's scores are."""
    scoring: Scoring | None = (
        None if temperature == 1.0 else calibrated([temperature] * found.depth)
    )
    return scoring(found) if scoring else found


def second_tree(first: Tree, below: Candidates, budget: int, depth: int) -> Tree:
    """The best tree that can be grown once the children of the first one's nodes are known.

    Args:
        first: the first tree.
        below: row i holds the children of its node i, best first.
        budget: rows of the result, root included.
        depth: deepest depth of the result.

    Returns:
        A tree whose nodes are nodes of ``first`` or children of one; rows in best-first order.
    """
    rows = _paths(first)
    tokens, log_probs = below.tokens.tolist(), below.log_probs[:, 0].tolist()

    def children(path: tuple[int, ...]) -> Iterable[tuple[int, float]]:
        row = rows.get(path)
        return () if row is None else zip(tokens[row], log_probs[row], strict=True)

    return best_first_paths(int(first.tokens[0]), children, budget, depth)


def first_rows(first: Tree, path: Sequence[int]) -> list[int]:
    """For each token of ``path`` the row of ``first`` that it is a child of."""
    rows = _paths(first)
    return [rows[tuple(path[:depth])] for depth in range(len(path))]


def _paths(tree: Tree) -> dict[tuple[int, ...], int]:
    """Each node's row by the tokens that lead to it; () is the root's."""
    paths: list[tuple[int, ...]] = [()]
    for token, parent in zip(tree.tokens.tolist()[1:], tree.parents.tolist()[1:], strict=True):
        paths.append((*paths[parent], token))
    return {path: row for row, path in enumerate(paths)}
