"""The draft tree: four parallel arrays, row 0 is the root, parents come before children."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jetflow_tree.whole import is_whole


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """A prefix-closed set of drafted nodes below the last committed token.

    Row 0 is the root. Every other row is one drafted token; its parent has a smaller row, and no
    two children of a row carry the same token. The arrays are read-only copies.

    Examples:
        >>> tree = Tree.from_parents([7, 1, 2, 3], [-1, 0, 0, 1])
        >>> tree.num_nodes, tree.children(0), tree.path(3)
        (4, (1, 2), (1, 3))
    """

    tokens: NDArray[np.int64]
    """[N] token ids; tokens[0] is the last committed token."""
    parents: NDArray[np.int32]
    """[N] row of the parent; parents[0] == -1."""
    depths: NDArray[np.int32]
    """[N] distance from the root; depths[0] == 0."""
    scores: NDArray[np.float64]
    """[N] cumulative log-probability of the path in nats; scores[0] == 0.0, none above 0."""

    def __post_init__(self) -> None:
        tokens = _column(self.tokens, "tokens")
        parents = _links(self.parents, "parents")
        depths = _links(self.depths, "depths")
        scores = np.array(self.scores, dtype=np.float64)
        _check(tokens, parents, depths, scores)
        _fill(self, tokens, parents, depths, scores)

    @classmethod
    def root_only(cls, token: int) -> Tree:
        """The tree of budget 1: plain decoding of one token.

        Raises:
            ValueError: If the token is no whole number from 0 to 2**63 - 1.
        """
        if not is_whole(token) or not 0 <= token < 2**63:
            raise ValueError(f"the root must be a token, a whole number from 0, got {token!r}")
        return trusted_tree(
            np.array([token], dtype=np.int64),
            np.array([-1], dtype=np.int32),
            np.zeros(1, dtype=np.int32),
            np.zeros(1, dtype=np.float64),
        )

    @classmethod
    def from_parents(
        cls, tokens: ArrayLike, parents: ArrayLike, scores: ArrayLike | None = None
    ) -> Tree:
        """A tree from its links; the depths follow from them.

        Args:
            tokens: [N] integer token ids, the root first.
            parents: [N] parent rows, -1 for the root and smaller than the own row elsewhere.
            scores: [N] cumulative log-probabilities; all 0.0 (nothing is known) when left out.

        Returns:
            The validated tree.

        Raises:
            ValueError: If the arrays do not describe a tree.
        """
        links = _links(parents, "parents")
        _check_links(links)
        depths = [0] * len(links)
        for row, parent in enumerate(links.tolist()):
            if row:
                depths[row] = depths[parent] + 1
        known = np.zeros(len(links)) if scores is None else np.asarray(scores, dtype=np.float64)
        return cls(np.asarray(tokens), links, np.array(depths, dtype=np.int32), known)

    @property
    def num_nodes(self) -> int:
        """N, the number of rows, root included."""
        return len(self.tokens)

    @property
    def max_depth(self) -> int:
        """The depth of the deepest row; 0 for a root alone."""
        return int(self.depths.max())

    def children(self, row: int) -> tuple[int, ...]:
        """The rows whose parent is ``row``, in row order."""
        self._check_row(row)
        return tuple(np.flatnonzero(self.parents == row).tolist())

    def path(self, row: int) -> tuple[int, ...]:
        """The rows from depth 1 down to ``row``, both included; empty for the root."""
        self._check_row(row)
        rows = []
        while row > 0:
            rows.append(row)
            row = int(self.parents[row])
        return tuple(reversed(rows))

    def expected_length(self) -> float:
        """Tokens a round is expected to commit: 1 + the sum of exp(score) over drafted rows.

        It is exact when the scores are the true probabilities of the paths, because a path is
        kept exactly when each of its tokens is, and one token follows the kept path always.
        """
        return 1.0 + float(np.exp(self.scores[1:]).sum())

    def breadth_first(self) -> Tree:
        """The same tree with rows sorted by depth; rows of one depth keep their order."""
        order = np.argsort(self.depths, kind="stable")
        place = np.empty(len(order), dtype=np.int32)
        place[order] = np.arange(len(order), dtype=np.int32)
        parents = self.parents[order]
        parents[1:] = place[parents[1:]]
        return trusted_tree(self.tokens[order], parents, self.depths[order], self.scores[order])

    def trim(self, num_nodes: int) -> Tree:
        """The first ``num_nodes`` rows (prefix-closed, since parents come first).

        Raises:
            ValueError: If num_nodes is outside 1..N.
        """
        if not 1 <= num_nodes <= self.num_nodes:
            raise ValueError(f"cannot trim to {num_nodes} rows, the tree has 1..{self.num_nodes}")
        return trusted_tree(
            self.tokens[:num_nodes],
            self.parents[:num_nodes],
            self.depths[:num_nodes],
            self.scores[:num_nodes],
        )

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.num_nodes:
            raise ValueError(f"row {row} is outside 0..{self.num_nodes - 1}")


def trusted_tree(
    tokens: NDArray[np.int64],
    parents: NDArray[np.int32],
    depths: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> Tree:
    """A tree from arrays that are right by construction; nothing is copied or checked.

    Builders run once a round, and checking their output would cost as much as building it; the
    property tests rebuild their trees through the checked constructor instead.
    """
    tree = object.__new__(Tree)
    _fill(tree, tokens, parents, depths, scores)
    return tree


def _fill(
    tree: Tree,
    tokens: NDArray[np.int64],
    parents: NDArray[np.int32],
    depths: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> None:
    put = object.__setattr__
    for array in (tokens, parents, depths, scores):
        array.setflags(write=False)
    put(tree, "tokens", tokens)
    put(tree, "parents", parents)
    put(tree, "depths", depths)
    put(tree, "scores", scores)


def _column(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise ValueError(f"{name} must have shape [N] with N >= 1, got {array.shape}")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integers, got dtype {array.dtype}")
    if array.dtype.kind == "u" and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit 64 bits with a sign, got {int(array.max())}")
    return np.array(array, dtype=np.int64)


def _links(values: ArrayLike, name: str) -> NDArray[np.int32]:
    """A column of row numbers or depths; what 32 bits would fold is refused."""
    wide = _column(values, name)
    bad = (wide < -1) | (wide > np.iinfo(np.int32).max)
    if bad.any():
        raise ValueError(f"{name} must be -1 or a row or depth, got {int(wide[bad][0])}")
    return wide.astype(np.int32)


def _check(
    tokens: NDArray[np.int64],
    parents: NDArray[np.int32],
    depths: NDArray[np.int32],
    scores: NDArray[np.float64],
) -> None:
    shapes = {tokens.shape, parents.shape, depths.shape, scores.shape}
    if len(shapes) > 1:
        raise ValueError(
            f"tokens, parents, depths and scores must have one length, got {tokens.shape}, "
            f"{parents.shape}, {depths.shape}, {scores.shape}"
        )
    if int(tokens.min()) < 0:
        raise ValueError(f"tokens must not be negative, got {int(tokens.min())}")
    _check_links(parents)
    if depths[0] != 0 or (depths[1:] != depths[parents[1:]] + 1).any():
        raise ValueError("depths must be 0 for the root and the parent's depth + 1 elsewhere")
    if scores[0] != 0.0 or not bool((scores <= 0.0).all()):
        raise ValueError("scores must be 0.0 for the root and numbers at most 0 elsewhere")
    order = np.lexsort((tokens, parents))
    same = (np.diff(parents[order]) == 0) & (np.diff(tokens[order]) == 0)
    if same.any():
        row = int(order[int(np.flatnonzero(same)[0])])
        raise ValueError(
            f"row {int(parents[row])} has two children with the token {int(tokens[row])}"
        )


def _check_links(parents: NDArray[np.int32]) -> None:
    if parents[0] != -1:
        raise ValueError(f"row 0 is the root, its parent must be -1, got {int(parents[0])}")
    rest = parents[1:]
    bad = (rest < 0) | (rest >= np.arange(1, len(parents)))
    if bad.any():
        row = int(np.flatnonzero(bad)[0]) + 1
        raise ValueError(f"the parent of row {row} must be in 0..{row - 1}, got {parents[row]}")
