"""What the steps of a round give, and the state that its end changes."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class TopTokens(Protocol):
    """The K greatest logits of N rows, best first."""

    @property
    def tokens(self) -> Tensor:
        """``[N, K]`` int32, the smaller token first among equal logits."""

    @property
    def log_probs(self) -> Tensor:
        """``[N, K]`` floating, never above 0; all NaN where the row is no distribution."""


class TreeBatch(Protocol):
    """R trees of at most C rows, row 0 the root.

    Rows from ``num_nodes`` on are padding: token 0, parent -1, depth 0, the position of the root.
    """

    @property
    def tokens(self) -> Tensor:
        """``[R, C]`` int32."""

    @property
    def parents(self) -> Tensor:
        """``[R, C]`` int32: row of the parent, above the row itself; -1 at the root."""

    @property
    def depths(self) -> Tensor:
        """``[R, C]`` int32."""

    @property
    def scores(self) -> Tensor:
        """``[R, C]`` float64: cumulative log-probability, 0 at the root, -inf in padding."""

    @property
    def ancestors(self) -> Tensor:
        """``[R, C, W]`` int64: bit ``i % 64`` of word ``i // 64`` says that row i is seen."""

    @property
    def positions(self) -> Tensor:
        """``[R, C]`` int32: position of the root plus depth."""

    @property
    def num_nodes(self) -> Tensor:
        """``[R]`` int32: rows that hold a node, 1 to C."""

    @property
    def valid(self) -> Tensor:
        """``[R]`` bool: False where the input was out of contract and the tree is its root."""


class AcceptedBatch(Protocol):
    """The accepted paths of R trees."""

    @property
    def rows(self) -> Tensor:
        """``[R, S]`` int32: the root's row 0, the accepted rows, then -1."""

    @property
    def tokens(self) -> Tensor:
        """``[R, S]`` int32: the accepted tokens, the correction, then -1."""

    @property
    def accepted(self) -> Tensor:
        """``[R]`` int32: accepted rows, the root not counted, 0 to D."""

    @property
    def correction(self) -> Tensor:
        """``[R]`` int32: the target's pick at the last row of the walk."""


class PackedTrees(Protocol):
    """The rows of R trees one behind the other, then padding: T rows in all."""

    @property
    def tokens(self) -> Tensor:
        """``[T]`` int64; 0 in padding."""

    @property
    def positions(self) -> Tensor:
        """``[T]`` int32; 0 in padding."""

    @property
    def slots(self) -> Tensor:
        """``[T]`` int64: where keys and values go; -1 in padding and past the page table."""

    @property
    def ancestors(self) -> Tensor:
        """``[T, W]`` int64; 0 in padding."""

    @property
    def owners(self) -> Tensor:
        """``[T]`` int64: whose row it is; any request in padding."""

    @property
    def cu_nodes(self) -> Tensor:
        """``[R + 1]`` int32: first row of each tree, and the rows of all."""

    @property
    def places(self) -> Tensor:
        """``[R, C]`` int64: the packed row of each row of a tree; any where there is none."""


class RoundLines(Protocol):
    """The state of R requests, a line each."""

    @property
    def live(self) -> Tensor:
        """``[R]`` bool."""

    @property
    def roots(self) -> Tensor:
        """``[R]`` int32."""

    @property
    def prefix_len(self) -> Tensor:
        """``[R]`` int32."""

    @property
    def remaining(self) -> Tensor:
        """``[R]`` int32."""

    @property
    def stops(self) -> Tensor:
        """``[R, X]`` int32, filled up with -1."""

    @property
    def record(self) -> Tensor:
        """``[R, 5 + S]`` int32, all 0 for a request that is not live.

        Tokens committed, rows accepted, rows verified, whether the walk met NaN, whether the draft
        was in contract, and the tokens of the path.
        """


class KeptRows(Protocol):
    """Which rows of a round stay."""

    @property
    def rows(self) -> Tensor:
        """``[R, S]`` int32: rows of the tree, then -1; only -1 for a request that is not live."""

    @property
    def places(self) -> Tensor:
        """``[R, S]`` int64: their packed rows; any where there is none."""

    @property
    def counts(self) -> Tensor:
        """``[R]`` int32: how many."""
