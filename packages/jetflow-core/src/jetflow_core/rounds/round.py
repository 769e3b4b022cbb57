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
from jetflow_core.rounds.ops import AcceptedBatch, RoundOps, TreeBatch
from jetflow_core.rounds.packing import PackedTrees, pack_trees
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
        slots = self._ops.tree_slots(
            of.page_table, of.prefix_len, counts, capacity=size.tree_rows, page=self._page
        )
        packed = pack_trees(trees, counts, slots, size.rows)
        logits, features = self._verify(of, packed)
        found, broken = self._pick(logits, packed, picks)
        chosen = found[packed.rows_of(_places(size.tree_rows, counts))]
        if self._imposed is not None:
            chosen = self._imposed(trees, counts, chosen)
        paths = self._ops.accept_walk(
            trees.tokens, trees.parents, counts, chosen, max_depth=self._drafter.depth
        )
        if self._shared is not None and size.tree_rows > 1:
            self._shared.acceptance.learn(tokens, log_probs, trees, counts, paths.rows)
        # Row 0 of a padding request is nobody's: moving it onto itself could undo a neighbour's.
        kept = paths.rows.masked_fill(~of.live[:, None], -1)
        self._commit(of, packed, kept, features)
        met_nan = (broken[packed.rows_of(kept)] & (kept >= 0)).any(1)
        self._advance(of, paths, counts, met_nan, trees.valid)

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
        if self._shared is not None and size.tree_rows > 1:
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

    def _commit(
        self, of: _Requests, packed: PackedTrees, kept: Tensor, features: Tensor | None
    ) -> None:
        requests, steps = kept.shape
        # The features are packed, so they are gathered here and not by the step.
        nothing = torch.empty(requests, steps, 0, dtype=self._stack.dtype, device=kept.device)
        self._ops.commit_path(self._cache, of.page_table, of.prefix_len, kept, nothing)
        if features is None or not self._drafter.reads_features:
            return
        found = features[packed.rows_of(kept)].masked_fill((kept < 0)[..., None], 0.0)
        self._drafter.absorb(
            CommittedRows(
                slots=of.slots,
                page_table=of.page_table,
                starts=of.prefix_len,
                counts=(kept >= 0).sum(1).int(),
                features=found,
            )
        )

    def _advance(
        self, of: _Requests, paths: AcceptedBatch, rows: Tensor, met_nan: Tensor, valid: Tensor
    ) -> None:
        state, live = self._state, of.live
        first = slice(0, live.shape[0])
        grown = (paths.accepted + 1).masked_fill(~live, 0)
        stops = (paths.tokens[..., None] == state.stops[first, None]).any(-1) & (paths.tokens >= 0)
        before_stop = torch.where(stops.any(1), stops.int().argmax(1) + 1, stops.shape[1] + 1)
        count = torch.minimum(grown, torch.minimum(before_stop, state.remaining[first])).int()
        count = count.masked_fill(~live, 0)
        ended = (before_stop <= grown) | (count >= state.remaining[first])
        facts = (count, paths.accepted, rows, met_nan.int(), valid.int())
        record = torch.cat([torch.stack(facts, dim=1), paths.tokens], dim=1)
        state.record[first] = record.masked_fill(~live[:, None], 0)
        state.roots[first] = torch.where(live, paths.correction, state.roots[first])
        state.prefix_len[first] += grown
        state.remaining[first] -= count
        state.live[first] = live & ~ended


def _places(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, device=like.device)
