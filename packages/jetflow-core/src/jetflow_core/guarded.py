"""Attention in which what is not finite reaches only the rows that see it: slow, run at need.

The fused kernels hide a column by adding -inf to its score and giving its value the weight 0. Both
make NaN of a NaN, so that one such row spoils every row of its pass, also those it is hidden from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from jetflow_core.cache import KVCache
from jetflow_core.layouts import Segment


class GuardedLayout:
    """A `Layout` that takes hidden columns out instead of adding to them.

    A row that sees a value that is not finite comes out as NaN in the same places.
    """

    def __init__(self, cache: KVCache, segments: Sequence[Segment], num_heads: int) -> None:
        """Prepare the masks of a pass; the arguments are those of `SlotwiseLayout`."""
        self._cache = cache
        self._segments = segments
        self._seen = [_seen_columns(segment).to(cache.buffer.device) for segment in segments]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """As `Layout` says."""
        parts, offset = [], 0
        for segment, seen in zip(self._segments, self._seen, strict=True):
            rows = slice(offset, offset + segment.count)
            self._cache.write(layer, segment.slot, segment.start, key[:, rows], value[:, rows])
            keys, values = self._cache.read(layer, segment.slot, segment.stop)
            parts.append(_attend(query[:, rows], keys, values, seen, scaling))
            offset += segment.count
        return torch.cat(parts)


def _seen_columns(segment: Segment) -> Tensor:
    """`[N, start + N]` bool: the prefix, and what the segment shows."""
    prefix = torch.ones((segment.count, segment.start), dtype=torch.bool)
    return torch.cat((prefix, segment.visible), dim=1)


def _attend(query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scaling: float) -> Tensor:
    """`[N, heads, head_dim]` of `[heads, N, head_dim]` and `[kv_heads, columns, head_dim]`."""
    # As the fused kernels do: sums in float32 at least.
    wide = torch.promote_types(query.dtype, torch.float32)
    grouped = query.to(wide).unflatten(0, (keys.shape[0], -1))
    scores = grouped @ keys.to(wide)[:, None].mT * scaling
    weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
    broken = ~values.isfinite()
    mixed = weights @ values.to(wide).masked_fill(broken, 0.0)[:, None]
    reached = seen.to(wide) @ broken.to(wide) > 0
    mixed = mixed.masked_fill(reached[:, None], math.nan)
    return mixed.flatten(0, 1).transpose(0, 1).to(query.dtype)
