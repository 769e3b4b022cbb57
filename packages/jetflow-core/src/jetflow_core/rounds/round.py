"""One whole round on static tensors: draft, tree, verify, pick, walk, commit, state.

Nothing here looks at a value, so one call does the same work whatever its requests hold and a CUDA
graph can keep it. A padding request, one that is not live, has no row in the pass: it writes
nothing and its record is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jetflow_core.rounds.auto.batch_trees import BatchTrees
from jetflow_core.rounds.draft import CommittedRows, DraftInputs, RoundDrafter
from jetflow_core.rounds.laws import Laws, Picks
from jetflow_core.rounds.ops import RoundOps
from jetflow_core.rounds.results import KeptRows, PackedTrees, TreeBatch
from jetflow_core.rounds.root_trees import RootTrees
from jetflow_core.rounds.state import RoundState
from jetflow_core.stacks import DecoderStack, KVPools, PackedRows


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSize:
    """What the shapes of a round follow from."""

    requests: int
    """R: slots 0..R-1 take part."""
    rows: int
    """T: packed rows of the verify pass, at least those of all live trees."""
    tree_rows: int
    """C: rows of one tree at most, 1 to 256; 1: no draft is made."""
    pages: int
    """Columns of the page table that are looked at; all rows of these requests lie in them."""


class ImposedPicks(Protocol):
    """Takes the place of the target's picks, for measurements whose acceptance is given.

    Everything else of a round runs as it would.
    """

    def __call__(self, trees: TreeBatch, counts: Tensor, picks: Tensor) -> Tensor:
        """Other picks; with static shapes and without a host wait.

        Args:
            trees: R trees of C rows.
            counts: int32 ``[R]``: rows of each, 0 for a padding request.
            picks: int32 ``[R, C]``, the target's own.

        Returns:
            int32 ``[R, C]``.
        """


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PagedAttention:
    """The attention of one pass: ``Attend`` of a stack by a round's own step."""

    ops: RoundOps
    pools: KVPools
    page_table: Tensor
    cu_nodes: Tensor
    prefix_len: Tensor
    ancestors: Tensor

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """Attends over the layer's pages; see ``RoundOps.tree_attention``."""
        return self.ops.tree_attention(
            q, self.pools.keys[layer], self.pools.values[layer], self.page_table, self.cu_nodes,
            self.prefix_len, self.ancestors,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Requests:
    """The requests of one round; of those that are not live nothing may be written."""

    slots: Tensor
    live: Tensor
    page_table: Tensor
    prefix_len: Tensor
    roots: Tensor
    depth_left: Tensor


class RoundProgram:
    """Rounds of one engine.

    Args:
        stack: the target, tapped as the drafter wants it.
        drafter: proposes.
        ops: the steps.
        pools: the target's pages.
        state: the requests; changed by every round.
        laws: what they make of logits.
        imposed: takes the place of the target's picks; None: nothing does.
        shared: gives all trees of a round one budget; None: each has its own.
    """

    def __init__(
        self,
        stack: DecoderStack,
        drafter: RoundDrafter,
        ops: RoundOps,
        pools: KVPools,
        state: RoundState,
        laws: Laws,
        *,
        imposed: ImposedPicks | None = None,
        shared: BatchTrees | None = None,
    ) -> None:
        self._stack, self._drafter, self._ops = stack, drafter, ops
        self._pools, self._state, self._imposed, self._shared = pools, state, imposed, shared
        self._laws = laws
        self._page = pools.keys[0].shape[1]
        self._roots_alone = RootTrees.empty(state.live.shape[0], state.live.device)
        self._cache = ops.cache_pools([*pools.keys, *pools.values])

    @torch.no_grad()
    def run(self, size: RoundSize, picks: Picks) -> None:
        """One round of the live requests in the first ``size.requests`` slots.

        Args:
            size: shapes; what is live fits in.
            picks: what all live requests need of picks.
        """
        of = self._requests(size)
        tokens, log_probs = self._candidates(of, size)
        trees = self._trees(of, tokens, log_probs, size)
        counts = self._counts(of, trees, size)
        packed = self._ops.pack_trees(
            trees.tokens, trees.positions, trees.ancestors, of.page_table, of.prefix_len, counts,
            rows=size.rows, page=self._page,
        )  # fmt: skip
        logits, features = self._verify(of, packed)
        found, broken = self._pick(logits, packed, picks)
        chosen = found[packed.places]
        if self._imposed is not None:
            chosen = self._imposed(trees, counts, chosen)
        paths = self._ops.accept_walk(
            trees.tokens, trees.parents, counts, chosen, max_depth=self._drafter.depth
        )
        if self._shared is not None and size.tree_rows > 1:
            self._shared.acceptance.learn(tokens, log_probs, trees, counts, paths.rows)
        kept = self._ops.advance(
            self._state.lines(size.requests), paths.rows, paths.tokens, paths.accepted,
            paths.correction, counts, packed.cu_nodes, broken, trees.valid,
        )  # fmt: skip
        self._commit(of, kept, features)

    def attention_version(self, rows: int) -> str:
        """What computes the attention of a pass over one request's tree of ``rows`` rows."""
        state, shape, device = self._state, self._stack.shape, self._stack.device
        query = torch.empty(
            rows, shape.num_heads, shape.head_dim, dtype=self._stack.dtype, device=device
        )
        words = torch.empty(rows, -(-rows // 64), dtype=torch.int64, device=device)
        starts = torch.empty(2, dtype=torch.int32, device=device)
        return self._ops.attention_version(
            query, self._pools.keys[0], self._pools.values[0], state.page_table[:1], starts,
            state.prefix_len[:1], words,
        )  # fmt: skip

    def _requests(self, size: RoundSize) -> _Requests:
        state, first = self._state, slice(0, size.requests)
        live = state.live[first]
        return _Requests(
            slots=_places(size.requests, live),
            live=live,
            page_table=state.page_table[first, : size.pages],
            prefix_len=state.prefix_len[first].masked_fill(~live, 0),
            roots=state.roots[first],
            depth_left=(state.remaining[first] - 1).clamp(min=0),
        )

    def _candidates(self, of: _Requests, size: RoundSize) -> tuple[Tensor, Tensor]:
        """Tokens ``[R, D, K]`` and scores; no depth where there is no draft."""
        if size.tree_rows == 1:
            tokens = of.roots.new_empty(size.requests, 0, 1)
            return tokens, torch.empty(size.requests, 0, 1, 1, device=tokens.device)
        tokens, log_probs = self._drafter.propose(
            DraftInputs(
                slots=of.slots,
                page_table=of.page_table,
                prefix_len=of.prefix_len,
                roots=of.roots,
                live=of.live,
                depth_left=of.depth_left,
            )
        )
        # One token always follows the accepted ones, so deeper rows could never be kept.
        too_deep = _places(tokens.shape[1], tokens) >= of.depth_left[:, None]
        return tokens, log_probs.masked_fill(too_deep[:, :, None, None], -torch.inf)

    def _trees(
        self, of: _Requests, tokens: Tensor, log_probs: Tensor, size: RoundSize
    ) -> TreeBatch:
        if size.tree_rows == 1:
            return self._roots_alone.of(of.roots, of.prefix_len)
        if self._shared is not None:
            log_probs = self._shared.acceptance.calibrated(log_probs)
        return self._ops.build_tree(
            tokens,
            log_probs,
            of.roots,
            self._state.budgets[: size.requests],
            of.prefix_len,
            capacity=size.tree_rows,
        )

    def _counts(self, of: _Requests, trees: TreeBatch, size: RoundSize) -> Tensor:
        """int32 ``[R]``: rows of each tree that are verified; 0 for a padding request."""
        if self._shared is None or size.tree_rows == 1:
            return trees.num_nodes.masked_fill(~of.live, 0)
        return self._shared.counts(trees, of.live, deepest=self._drafter.depth)

    def _verify(self, of: _Requests, packed: PackedTrees) -> tuple[Tensor, Tensor | None]:
        stack, features = self._stack, None
        if stack.feature_size:
            features = torch.empty(
                packed.tokens.shape[0], stack.feature_size, dtype=stack.dtype, device=stack.device
            )
        attend = PagedAttention(
            ops=self._ops,
            pools=self._pools,
            page_table=of.page_table,
            cu_nodes=packed.cu_nodes,
            prefix_len=of.prefix_len,
            ancestors=packed.ancestors,
        )
        rows = PackedRows(tokens=packed.tokens, positions=packed.positions, slots=packed.slots)
        return stack.logits(stack.forward(rows, self._pools, attend, features)), features

    def _pick(self, logits: Tensor, packed: PackedTrees, picks: Picks) -> tuple[Tensor, Tensor]:
        """Tokens int32 ``[T]``, and which rows hold NaN."""
        state, laws, owners = self._state, self._laws, packed.owners
        if picks.edited:
            logits = laws.edited(logits, owners, packed.positions, state.stops)
        if not picks.drawn:
            return self._ops.pick_argmax(logits)
        temperatures, nan = state.temperatures[owners], None
        if picks.cut:
            nan = logits.isnan().any(1)
            logits = laws.cut(logits, owners, temperatures)
        found, broken = self._ops.pick_sampled(
            logits, temperatures, state.seeds[owners], packed.positions
        )
        return found, broken if nan is None else broken | nan

    def _commit(self, of: _Requests, kept: KeptRows, features: Tensor | None) -> None:
        # Row 0 of a padding request is nobody's: moving it onto itself could undo a neighbour's.
        requests, steps = kept.rows.shape
        # The features are packed, so they are gathered here and not by the step.
        nothing = torch.empty(requests, steps, 0, dtype=self._stack.dtype, device=kept.rows.device)
        self._ops.commit_path(self._cache, of.page_table, of.prefix_len, kept.rows, nothing)
        if features is None or not self._drafter.reads_features:
            return
        self._drafter.absorb(
            CommittedRows(
                slots=of.slots,
                page_table=of.page_table,
                starts=of.prefix_len,
                counts=kept.counts,
                features=features[kept.places],
            )
        )


def _places(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)
