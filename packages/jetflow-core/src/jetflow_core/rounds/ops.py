"""The steps of a round, as one small Protocol between this engine and whoever is fast at them.

An implementer provides one object, a module will do, that has the functions of ``RoundOps`` under
these names with these arguments; more optional arguments do no harm. An installed package offers it
for CUDA devices by an entry point of the group ``jetflow.round_ops`` (see ``find``). What it must
keep to:

- The host never waits for the device, and no shape follows from a value: all calls of a round are
  captured in one CUDA graph and replayed with other values in the same tensors.
- Values may be out of contract for padding requests (no live rows). Nothing may then be written
  outside of the results, and no result of another request may change.
- A slot below 0 is never written; a row behind a path's end, -1, moves nothing.
- A request's results depend on its own rows, never on its neighbours'.

R is the number of requests, C the rows of a tree with padding, T the packed rows of a pass, D the
depths, K the candidates of a depth, W = ceil(C / 64), S = D + 1. ``torch_ops`` is the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from jetflow_core.rounds.results import (
    AcceptedBatch,
    KeptRows,
    PackedTrees,
    RoundLines,
    TopTokens,
    TreeBatch,
)


class RoundOps(Protocol):
    """All steps of a round besides the products with weights."""

    def depth_topk(self, logits: Tensor, count: int) -> TopTokens:
        """The ``count`` greatest of each row of ``logits`` ``[N, V]``, with log-probabilities."""

    def path_candidates(
        self,
        first_tokens: Tensor,
        first: Tensor,
        pooled: Tensor,
        base: Tensor,
        bias: Tensor,
        temperatures: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Chooses the candidates of depths 2.. out of pools, along the paths drafted so far.

        A token's chance is the sum over the parent candidates of the parent's chance and the
        token's after it. Those of the greatest chances, the earlier in the pool first among
        equals, are the depth's candidates, and the parents of the next depth.

        Args:
            first_tokens: ``[R, K]`` int32, the candidates of depth 1.
            first: ``[R, K]`` floating, their log-probabilities.
            pooled: ``[R, D - 1, Q]`` int32, Q at least K.
            base: ``[R, D - 1, Q]``, log-probabilities of the pools by their depth alone.
            bias: ``[R, D - 1, Q, Q]`` floating, the path term of a pool's token (last) after a
                parent: for depth 2 candidate 0..K-1 of depth 1, for others one of the pool before.
            temperatures: ``[R]`` float64, what the scores of the result are divided by before they
                are normalised again; 1 changes nothing. The choice does not depend on it.

        Returns:
            ``[R, D, K]`` int32, and ``[R, D, K, K]`` floating, as ``build_tree`` takes them.
        """

    def build_tree(
        self,
        tokens: Tensor,
        log_probs: Tensor,
        roots: Tensor,
        budgets: Tensor,
        root_positions: Tensor,
        *,
        capacity: int,
    ) -> TreeBatch:
        """The trees of the most probable nodes, exactly as ``jetflow_tree.BestFirst`` grows them.

        Args:
            tokens: ``[R, D, K]`` int32, the candidates of each depth.
            log_probs: ``[R, D, P, K]`` floating, P = 1 or K; -inf: never a node.
            roots: ``[R]`` int32.
            budgets: ``[R]`` int32, rows of each tree; outside 1..C: the root alone.
            root_positions: ``[R]`` int32, tokens before each root.
            capacity: C, 1 to 256.
        """

    def pack_ancestors(self, parents: Tensor, num_nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Words ``[R, C, W]`` and validity ``[R]`` of trees given by ``parents`` ``[R, C]``."""

    def tree_slots(
        self,
        page_table: Tensor,
        prefix_len: Tensor,
        num_nodes: Tensor,
        *,
        capacity: int,
        page: int,
    ) -> Tensor:
        """Cache slots ``[R, C]`` int64 of the rows behind each prefix.

        -1 from ``num_nodes`` (``[R]`` int32, 0 for a padding request) on and past the table's end.

        Args:
            page_table: ``[R, max_pages]`` int32.
            prefix_len: ``[R]`` int32.
            num_nodes: ``[R]`` int32.
            capacity: C.
            page: rows of a page.
        """

    def pack_trees(
        self,
        tokens: Tensor,
        positions: Tensor,
        ancestors: Tensor,
        page_table: Tensor,
        prefix_len: Tensor,
        counts: Tensor,
        *,
        rows: int,
        page: int,
    ) -> PackedTrees:
        """Packs the first rows of every tree into one batch, and finds their cache slots.

        Args:
            tokens: ``[R, C]`` int32.
            positions: ``[R, C]`` int32.
            ancestors: ``[R, C, W]`` int64.
            page_table: ``[R, max_pages]`` int32.
            prefix_len: ``[R]`` int32: the rows go behind it.
            counts: ``[R]`` int32, 0 for a padding request; at most ``rows`` in all.
            rows: T.
            page: rows of a page.
        """

    def tree_attention(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        page_table: Tensor,
        cu_nodes: Tensor,
        prefix_len: Tensor,
        ancestors: Tensor,
        *,
        scale: float | None = None,
    ) -> Tensor:
        """Attention ``[T, heads, dim]`` of packed rows over their prefix and their ancestors.

        Args:
            q: ``[T, heads, dim]``, the rows of all trees, request by request, then padding.
            k_pool: ``[pages, page, kv_heads, dim]``; the rows' own keys are in it already.
            v_pool: like ``k_pool``.
            page_table: ``[R, max_pages]`` int32.
            cu_nodes: ``[R + 1]`` int32, first packed row of each request, starting with 0.
            prefix_len: ``[R]`` int32.
            ancestors: ``[T, W]`` int64.
            scale: factor of the scores; None: ``1 / sqrt(dim)``.
        """

    def attention_version(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        page_table: Tensor,
        cu_nodes: Tensor,
        prefix_len: Tensor,
        ancestors: Tensor,
    ) -> str:
        """What ``tree_attention`` runs for tensors like these, for reports; no value is read."""

    def norm_rope_kv_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        *,
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Tensor:
        """Norms and turns queries and keys, writes keys and values to their slots.

        Args:
            qkv: ``[T, (heads + 2 kv_heads) * dim]``; the last axis without gaps.
            positions: ``[T]`` int32.
            cos: ``[P, dim / 2]``, of the pairs (i, i + dim / 2); a position is a line of it.
            sin: like ``cos``.
            slots: ``[T]`` int64.
            k_pool: ``[pages, page, kv_heads, dim]``, changed in place.
            v_pool: like ``k_pool``.
            q_weight: ``[dim]``, of the head norm of queries; None: no head norms.
            k_weight: likewise of keys.
            eps: what the norms add to the mean square.

        Returns:
            ``[T, heads, dim]``, the queries.
        """

    def pick_argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """First token of the greatest logit ``[N]`` int32 of ``[N, V]``, and rows with NaN."""

    def pick_sampled(
        self, logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A token of each row drawn from softmax(logits / temperature) with keyed noise.

        The token of the greatest ``logit + temperature * gumbel(seed, position + 1)``, with the
        noise of ``jetflow_core.noise``: tree and plain decoding draw the same.

        Args:
            logits: ``[N, V]``.
            temperatures: ``[N]`` float32; 0 is greedy.
            seeds: ``[N]`` int64, read as 64 unsigned bits.
            positions: ``[N]`` int32, of the rows themselves.

        Returns:
            int32 ``[N]``, and bool ``[N]`` for rows with NaN.
        """

    def accept_walk(
        self,
        tokens: Tensor,
        parents: Tensor,
        num_nodes: Tensor,
        picks: Tensor,
        *,
        max_depth: int,
    ) -> AcceptedBatch:
        """Walks every tree from its root along the target's ``picks`` ``[R, C]`` int32."""

    def cache_pools(self, pools: Sequence[Tensor]) -> Any:
        """What ``commit_path`` wants to know of the pools of all layers; made once, outside."""

    def commit_path(
        self,
        cache: Any,
        page_table: Tensor,
        prefix_len: Tensor,
        rows: Tensor,
        features: Tensor,
    ) -> Tensor:
        """Moves the cache rows ``prefix + rows[i]`` to ``prefix + i`` in every pool.

        Args:
            cache: from ``cache_pools``.
            page_table: ``[R, max_pages]`` int32.
            prefix_len: ``[R]`` int32, left alone.
            rows: ``[R, S]`` int32 as ``accept_walk`` gives them; a line of -1 moves nothing.
            features: ``[R, C, F]``, F may be 0.

        Returns:
            ``[R, S, F]``: the features of the kept rows, 0 behind a path's end.
        """

    def advance(
        self,
        lines: RoundLines,
        rows: Tensor,
        tokens: Tensor,
        accepted: Tensor,
        correction: Tensor,
        counts: Tensor,
        cu_nodes: Tensor,
        broken: Tensor,
        valid: Tensor,
    ) -> KeptRows:
        """Ends a round: writes the record and the state of the next round, in place.

        A live request commits the tokens of its path up to the first stop token and to what
        remains, and is live no more behind either. Its prefix grows by the root and the accepted
        rows, and the correction is its next root.

        Args:
            lines: the state of R requests.
            rows: ``[R, S]`` int32, what ``accept_walk`` found, like the next three.
            tokens: ``[R, S]`` int32.
            accepted: ``[R]`` int32.
            correction: ``[R]`` int32.
            counts: ``[R]`` int32: rows of each tree that were verified.
            cu_nodes: ``[R + 1]`` int32.
            broken: ``[T]`` bool: packed rows with NaN.
            valid: ``[R]`` bool, of the tree.
        """
