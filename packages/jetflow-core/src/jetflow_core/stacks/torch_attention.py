"""Paged tree attention in plain torch: each request over exactly its own rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from jetflow_core.stacks.passes import KVPools

_WORD_BITS = 64


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TorchTreeAttention:
    """An `Attend` for the CPU: it looks at lengths on the host, so no graph can hold it.

    Request b has `prefix_len[b]` committed rows, then those of its tree, whose keys and values
    the pass has just written. A row sees the whole prefix and the tree rows whose bits it has.

    Attributes:
        pools: Keys and values of all layers.
        page_table: `[B, max_pages]` integers; entry i of a request is the page of its rows
            `i * page ..`. Entries past its last row are not read.
        cu_nodes: `[B + 1]` integers, first row of each request in the pass, starting with 0.
        prefix_len: `[B]` integers.
        ancestors: `[T, W]` int64: bit c of word w stands for tree row `64 * w + c`.
    """

    pools: KVPools
    page_table: Tensor
    cu_nodes: Tensor
    prefix_len: Tensor
    ancestors: Tensor

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """As `Attend` says; padding rows are 0."""
        out = torch.zeros_like(q)
        starts = self.cu_nodes.tolist()
        for request, prefix in enumerate(self.prefix_len.tolist()):
            first, last = starts[request], starts[request + 1]
            if first < last:
                out[first:last] = self._attend(layer, q[first:last], request, first, prefix)
        return out

    def _attend(self, layer: int, q: Tensor, request: int, first: int, prefix: int) -> Tensor:
        rows = q.shape[0]
        keys, values = (
            self._gathered(pool, request, prefix + rows)
            for pool in (self.pools.keys[layer], self.pools.values[layer])
        )
        mixed = scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys[None], values[None],
            attn_mask=self._bias(q, first, prefix)[None, None], enable_gqa=True,
        )  # fmt: skip
        return mixed[0].transpose(0, 1)

    def _gathered(self, pool: Tensor, request: int, length: int) -> Tensor:
        """`[kv_heads, length, head_dim]`: a request's rows in their order."""
        pages = self.page_table[request, : -(-length // pool.shape[1])].long()
        return pool[pages].flatten(0, 1)[:length].transpose(0, 1)

    def _bias(self, q: Tensor, first: int, prefix: int) -> Tensor:
        rows = q.shape[0]
        shifts = torch.arange(_WORD_BITS, device=q.device)
        bits = (self.ancestors[first : first + rows, :, None] >> shifts) & 1
        hidden = bits.flatten(1)[:, :rows] == 0
        bias = torch.zeros(rows, prefix + rows, dtype=q.dtype, device=q.device)
        bias[:, prefix:].masked_fill_(hidden, -math.inf)
        return bias
