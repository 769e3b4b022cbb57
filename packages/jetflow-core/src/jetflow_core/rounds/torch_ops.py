"""The steps of a round in plain torch: the reference, and what a CPU runs.

Shapes follow from shapes alone and nothing is read on the host, as in an implementation for GPUs,
so that a CPU runs the very program that a graph holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jetflow_tree.torch import DeviceTrees, ancestor_words, best_first, positions
from torch import Tensor

from jetflow_core.rounds.device_noise import gumbel_rows
from jetflow_core.rounds.packing import advance, pack_trees
from jetflow_core.rounds.torch_attention import paged_attention
from jetflow_core.rounds.torch_paths import path_candidates
from jetflow_core.stacks.torch_ops import TorchOps, write_rows

_NONE = -1
_NOISE_ROWS = 16


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TorchTopTokens:
    """As ``TopTokens`` says."""

    tokens: Tensor
    log_probs: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TorchTrees:
    """As ``TreeBatch`` says."""

    tokens: Tensor
    parents: Tensor
    depths: Tensor
    scores: Tensor
    ancestors: Tensor
    positions: Tensor
    num_nodes: Tensor
    valid: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TorchAccepted:
    """As ``AcceptedBatch`` says."""

    rows: Tensor
    tokens: Tensor
    accepted: Tensor
    correction: Tensor


class TorchRoundOps:
    """``RoundOps`` without kernels; arguments and results as there."""

    path_candidates = staticmethod(path_candidates)
    pack_trees = staticmethod(pack_trees)
    advance = staticmethod(advance)

    def depth_topk(self, logits: Tensor, count: int) -> TorchTopTokens:
        """See ``RoundOps``; which of equal logits are among the chosen is torch's choice."""
        wide = logits if logits.dtype == torch.float64 else logits.float()
        best, tokens = wide.topk(count, dim=-1)
        tokens, order = tokens.sort(dim=-1)
        best, again = best.gather(1, order).sort(dim=-1, descending=True, stable=True)
        total = wide.logsumexp(-1, keepdim=True)
        scores = (best - total).clamp(max=0.0).masked_fill(~total.isfinite(), torch.nan)
        return TorchTopTokens(tokens=tokens.gather(1, again).int(), log_probs=scores)

    def build_tree(
        self,
        tokens: Tensor,
        log_probs: Tensor,
        roots: Tensor,
        budgets: Tensor,
        root_positions: Tensor,
        *,
        capacity: int,
    ) -> TorchTrees:
        """See ``RoundOps``."""
        trees = best_first(
            tokens.long(), log_probs, roots.long(), capacity, live_budgets=budgets.long()
        )
        return TorchTrees(
            tokens=trees.tokens.int(),
            parents=trees.parents.int(),
            depths=trees.depths.int(),
            scores=trees.scores,
            ancestors=ancestor_words(trees),
            positions=positions(trees, root_positions.long()).int(),
            num_nodes=trees.num_nodes.int(),
            valid=trees.valid,
        )

    def pack_ancestors(self, parents: Tensor, num_nodes: Tensor) -> tuple[Tensor, Tensor]:
        """See ``RoundOps``."""
        rows = torch.arange(parents.shape[1], device=parents.device)
        inside = rows < num_nodes[:, None]
        fine = (parents >= 0) & (parents < rows) | ~inside
        fine[:, 0] = parents[:, 0] == _NONE
        valid = fine.all(1) & (num_nodes >= 1) & (num_nodes <= parents.shape[1])
        kept = torch.where(inside & valid[:, None], parents, _NONE).long()
        empty = torch.zeros_like(kept)
        trees = DeviceTrees(
            tokens=empty, parents=kept, depths=empty, scores=empty.double(),
            num_nodes=num_nodes.long(), valid=valid, max_depth=parents.shape[1] - 1,
        )  # fmt: skip
        return ancestor_words(trees), valid

    def tree_slots(
        self,
        page_table: Tensor,
        prefix_len: Tensor,
        num_nodes: Tensor,
        *,
        capacity: int,
        page: int,
    ) -> Tensor:
        """See ``RoundOps``."""
        rows = torch.arange(capacity, device=page_table.device)
        place = prefix_len[:, None] + rows
        number = place // page
        kept = (rows < num_nodes[:, None]) & (number < page_table.shape[1])
        found = page_table.gather(1, number.clamp(max=page_table.shape[1] - 1).long())
        return torch.where(kept, found.long() * page + place % page, _NONE)

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
        """See ``RoundOps``."""
        return paged_attention(
            q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors, scale=scale
        )

    def attention_version(self, *arguments: Tensor) -> str:
        """See ``RoundOps``: always this one."""
        return "torch"

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
        """See ``RoundOps``: the same step as that of a stack's layers."""
        return TorchOps().norm_rope_kv_write(
            qkv, positions, cos, sin, slots, k_pool, v_pool,
            q_weight=q_weight, k_weight=k_weight, eps=eps,
        )  # fmt: skip

    def pick_argmax(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """See ``RoundOps``."""
        nan = logits.isnan()
        return _first_greatest(logits.masked_fill(nan, -torch.inf)), nan.any(1)

    def pick_sampled(
        self, logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See ``RoundOps``."""
        nan = logits.isnan()
        values = logits.double().masked_fill(nan, -torch.inf)
        # The noise of all rows at once would take several times the memory of the logits.
        noisy = [
            some + heat.double()[:, None] * gumbel_rows(keys, places.long() + 1, logits.shape[1])
            for some, heat, keys, places in zip(
                *(each.split(_NOISE_ROWS) for each in (values, temperatures, seeds, positions)),
                strict=True,
            )
        ]
        return _first_greatest(torch.cat(noisy)), nan.any(1)

    def accept_walk(
        self,
        tokens: Tensor,
        parents: Tensor,
        num_nodes: Tensor,
        picks: Tensor,
        *,
        max_depth: int,
    ) -> TorchAccepted:
        """See ``RoundOps``."""
        inside = torch.arange(tokens.shape[1], device=tokens.device) < num_nodes[:, None]
        row = torch.zeros_like(num_nodes, dtype=torch.int64)
        walking = torch.ones_like(row, dtype=torch.bool)
        path = [row]
        for _ in range(max_depth):
            picked = picks.gather(1, row[:, None])
            child = inside & (parents == row[:, None]) & (tokens == picked)
            walking = walking & child.any(1)
            row = torch.where(walking, child.int().argmax(1), row)
            path.append(torch.where(walking, row, _NONE))
        rows = torch.stack(path, dim=1)
        # What a round commits are the picks at the rows of the path, the last one's included.
        chosen = picks.gather(1, rows.clamp(min=0)).masked_fill(rows < 0, _NONE)
        return TorchAccepted(
            rows=rows.int(),
            tokens=chosen.int(),
            accepted=((rows >= 0).sum(1) - 1).int(),
            correction=picks.gather(1, row[:, None])[:, 0].int(),
        )

    def cache_pools(self, pools: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The pools themselves."""
        return tuple(pools)

    def commit_path(
        self,
        cache: tuple[Tensor, ...],
        page_table: Tensor,
        prefix_len: Tensor,
        rows: Tensor,
        features: Tensor,
    ) -> Tensor:
        """See ``RoundOps``."""
        kept = rows >= 0
        steps = torch.arange(rows.shape[1], device=rows.device)
        page = cache[0].shape[1]
        source, goal = (
            torch.where(kept, _slots(page_table, prefix_len[:, None] + at, page), _NONE).flatten()
            for at in (rows, steps)
        )
        read = source.clamp(min=0)
        for pool in cache:
            # Indexing copies, so all rows are read before one is written.
            write_rows(pool, goal, pool[read // page, read % page])
        chosen = rows.clamp(min=0).long()[..., None].expand(-1, -1, features.shape[2])
        return features.gather(1, chosen).masked_fill(~kept[..., None], 0.0)


def _slots(page_table: Tensor, places: Tensor, page: int) -> Tensor:
    number = (places // page).clamp(0, page_table.shape[1] - 1).long()
    return page_table.gather(1, number).long() * page + places % page


def _first_greatest(values: Tensor) -> Tensor:
    # Of equal maxima the first: torch's argmax promises none.
    tokens = torch.arange(values.shape[1], device=values.device)
    greatest = values == values.amax(1, keepdim=True)
    return torch.where(greatest, tokens, values.shape[1]).amin(1).int()
