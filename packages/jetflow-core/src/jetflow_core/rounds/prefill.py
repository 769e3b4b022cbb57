"""Chunks of several prompts into the cache in one pass: chains of rows, committed as written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jetflow_core.rounds.draft import CommittedRows, RoundDrafter
from jetflow_core.rounds.ops import RoundOps
from jetflow_core.rounds.round import PagedAttention
from jetflow_core.rounds.state import RoundState
from jetflow_core.rounds.torch_attention import owners_of_rows
from jetflow_core.rounds.transfer import Upload
from jetflow_core.stacks import DecoderStack, KVPools, PackedRows

MOST_ROWS = 256
"""Rows of one prompt in a pass: what the ancestor words of a pass can name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """Rows of one prompt."""

    slot: int
    start: int
    """Position of the first of them."""
    tokens: Sequence[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptSize:
    """What the shapes of a pass over prompts follow from."""

    requests: int
    """R: prompts that take part, those that pad included."""
    rows: int
    """T: packed rows."""
    longest: int
    """S: rows of one prompt at most."""
    pages: int
    """Columns of the page table that are looked at."""


class PrefillProgram:
    """Passes over chunks of prompts, over static inputs.

    Args:
        stack: the target.
        drafter: takes in the rows as well.
        ops: the steps.
        pools: the target's pages.
        state: whose page tables are read; nothing of it is changed.
        longest: rows of one prompt in a pass, 1 to ``MOST_ROWS``.
        rows: rows of all prompts in a pass, at least ``longest``.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        stack: DecoderStack,
        drafter: RoundDrafter,
        ops: RoundOps,
        pools: KVPools,
        state: RoundState,
        *,
        longest: int,
        rows: int,
    ) -> None:
        if not 1 <= longest <= MOST_ROWS:
            raise ValueError(f"a chunk of a prompt has 1 to {MOST_ROWS} rows, got {longest}")
        if rows < longest:
            raise ValueError(f"a pass over prompts has at least a chunk's {longest} rows: {rows}")
        self._stack, self._drafter, self._ops = stack, drafter, ops
        self._pools, self._state, self.longest, self.rows = pools, state, longest, rows
        self._page, self._slots = pools.keys[0].shape[1], state.live.shape[0]
        size = 3 * self._slots + rows
        self._inputs = torch.zeros(size, dtype=torch.int64, device=stack.device)
        self._upload = Upload(self._inputs)

    def load(self, chunks: Sequence[Chunk]) -> None:
        """Names the next chunks: of different slots, together at most as many rows as a pass."""
        values = np.zeros(self._inputs.shape, dtype=np.int64)
        taken = [chunk.slot for chunk in chunks]
        # Whoever pads needs a slot of its own: the drafter writes back what it holds of each.
        others = [slot for slot in range(self._slots) if slot not in taken]
        lines = values[: 3 * self._slots].reshape(3, self._slots)
        lines[0] = taken + others
        lines[1, : len(chunks)] = [chunk.start for chunk in chunks]
        lines[2, : len(chunks)] = [len(chunk.tokens) for chunk in chunks]
        tokens = [token for chunk in chunks for token in chunk.tokens]
        values[3 * self._slots :][: len(tokens)] = tokens
        self._upload.push(values)

    @torch.no_grad()
    def run(self, size: PromptSize) -> None:
        """Commits the loaded chunks, which fit in ``size``."""
        slots, starts, counts = self._inputs[: 3 * self._slots].view(3, -1)[:, : size.requests]
        starts, counts = starts.int(), counts.int()
        cu_rows = torch.zeros(size.requests + 1, dtype=torch.int32, device=slots.device)
        cu_rows[1:] = counts.cumsum(0)
        owners, within = owners_of_rows(cu_rows, size.rows)
        padding = torch.arange(size.rows, device=slots.device) >= cu_rows[-1]
        within = within.clamp(max=size.longest - 1)
        table = self._state.page_table[slots, : size.pages]
        places = self._ops.tree_slots(
            table, starts, counts, capacity=size.longest, page=self._page
        )[owners, within]
        attend = PagedAttention(
            ops=self._ops,
            pools=self._pools,
            page_table=table,
            cu_nodes=cu_rows,
            prefix_len=starts,
            ancestors=self._chain(size.longest)[within].masked_fill(padding[:, None], 0),
        )
        packed = PackedRows(
            tokens=self._inputs[3 * self._slots :][: size.rows].masked_fill(padding, 0),
            positions=(starts[owners] + within).masked_fill(padding, 0).int(),
            slots=places.masked_fill(padding, -1),
        )
        stack, features = self._stack, None
        if stack.feature_size:
            features = torch.empty(
                size.rows, stack.feature_size, dtype=stack.dtype, device=stack.device
            )
        stack.forward(packed, self._pools, attend, features)
        if features is None or not self._drafter.reads_features:
            return
        each = torch.arange(size.longest, device=slots.device)
        found = features[(cu_rows[:-1, None] + each).clamp(max=size.rows - 1).long()]
        behind = each >= counts[:, None]
        self._drafter.absorb(
            CommittedRows(
                slots=slots,
                page_table=table,
                starts=starts,
                counts=counts,
                features=found.masked_fill(behind[..., None], 0.0),
            )
        )

    def _chain(self, rows: int) -> Tensor:
        """Words ``[S, W]`` of rows that see themselves and all before them."""
        chain = torch.arange(-1, rows - 1, dtype=torch.int32, device=self._stack.device)[None]
        words, _ = self._ops.pack_ancestors(chain, torch.full_like(chain[:, 0], rows))
        return words[0]
