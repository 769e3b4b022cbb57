"""A chunk of a prompt into the cache: a chain of rows, committed as it is written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from jetflow_core.rounds.draft import CommittedRows, RoundDrafter
from jetflow_core.rounds.ops import RoundOps
from jetflow_core.rounds.round import PagedAttention
from jetflow_core.rounds.state import RoundState
from jetflow_core.rounds.transfer import Upload
from jetflow_core.stacks import DecoderStack, KVPools, PackedRows

MOST_ROWS = 256
"""Rows of a chunk: what the ancestor words of a pass can name."""


class PrefillProgram:
    """Chunks of prompts, one slot at a time, over static inputs.

    Args:
        stack: the target.
        drafter: takes in the rows as well.
        ops: the steps.
        pools: the target's pages.
        state: whose page tables are read; nothing of it is changed.
        rows: rows of a chunk, 1 to ``MOST_ROWS``.

    Raises:
        ValueError: ``rows`` is out of range.
    """

    def __init__(
        self,
        stack: DecoderStack,
        drafter: RoundDrafter,
        ops: RoundOps,
        pools: KVPools,
        state: RoundState,
        *,
        rows: int,
    ) -> None:
        if not 1 <= rows <= MOST_ROWS:
            raise ValueError(f"a chunk of a prompt has 1 to {MOST_ROWS} rows, got {rows}")
        self._stack, self._drafter, self._ops = stack, drafter, ops
        self._pools, self._state, self.rows = pools, state, rows
        self._page = pools.keys[0].shape[1]
        self._inputs = torch.zeros(rows + 3, dtype=torch.int64, device=stack.device)
        self._upload = Upload(self._inputs)

    def load(self, slot: int, start: int, tokens: Sequence[int]) -> None:
        """Names the next chunk: ``tokens``, at most ``rows``, at positions ``start`` and on."""
        values = np.zeros(self.rows + 3, dtype=np.int64)
        values[:3] = slot, start, len(tokens)
        values[3 : 3 + len(tokens)] = tokens
        self._upload.push(values)

    @torch.no_grad()
    def run(self, rows: int, pages: int) -> None:
        """Commits the loaded chunk.

        Args:
            rows: rows of the pass, at least the chunk's.
            pages: columns of the page table that are looked at.
        """
        slot, (start, count) = self._inputs[:1], self._inputs[1:3].int().split(1)
        each = torch.arange(rows, device=slot.device)
        real = each < count
        table = self._state.page_table[slot, :pages]
        slots = self._ops.tree_slots(table, start, count, capacity=rows, page=self._page)[0]
        chain = (each - 1).int()[None]
        words, _ = self._ops.pack_ancestors(chain, torch.full_like(count, rows))
        stack, features = self._stack, None
        if stack.feature_size:
            features = torch.empty(rows, stack.feature_size, dtype=stack.dtype, device=stack.device)
        attend = PagedAttention(
            ops=self._ops,
            pools=self._pools,
            page_table=table,
            cu_nodes=torch.cat([torch.zeros_like(count), count]),
            prefix_len=start,
            ancestors=words[0],
        )
        packed = PackedRows(
            tokens=self._inputs[3 : 3 + rows].masked_fill(~real, 0),
            positions=(start + each).masked_fill(~real, 0).int(),
            slots=slots,
        )
        stack.forward(packed, self._pools, attend, features)
        if features is not None and self._drafter.reads_features:
            self._drafter.absorb(
                CommittedRows(
                    slots=slot,
                    page_table=table,
                    starts=start,
                    counts=count,
                    features=features.masked_fill(~real[:, None], 0.0)[None],
                )
            )
