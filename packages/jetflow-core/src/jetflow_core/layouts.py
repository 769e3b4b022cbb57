"""The rows of a pass over several slots: whose they are, and what each may see."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from jetflow_core.cache import KVCache

# The fused GPU kernels want mask rows aligned to this, and would copy the mask in every layer.
_ALIGNMENT = 16


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Segment:
    """The rows of one slot in a pass; segments lie behind each other without gaps.

    Attributes:
        slot: Whose cache the rows see and extend.
        start: Length of the slot's prefix, all of it visible; the rows are written behind it.
        visible: `[N, N]` bool on the CPU, true where a row sees a row of the segment. Every row
            sees itself.
    """

    slot: int
    start: int
    visible: Tensor

    @property
    def count(self) -> int:
        """Rows of the segment."""
        return self.visible.shape[0]

    @property
    def stop(self) -> int:
        """Rows of the slot's cache with this segment's behind the prefix."""
        return self.start + self.count


class SlotwiseLayout:
    """One attention call a slot, over exactly its own rows: nothing is padded or copied."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment], num_heads: int) -> None:
        """Prepare the masks of a pass.

        Args:
            cache: Keys and values of all slots.
            segments: The rows of the pass.
            num_heads: Query heads.
        """
        self._cache = cache
        self._segments = segments
        group = num_heads // cache.kv_heads
        self._biases = [_segment_bias(segment, group, cache) for segment in segments]

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """As `Layout` says."""
        parts, offset = [], 0
        for segment, bias in zip(self._segments, self._biases, strict=True):
            rows = slice(offset, offset + segment.count)
            self._cache.write(layer, segment.slot, segment.start, key[:, rows], value[:, rows])
            keys, values = self._cache.read(layer, segment.slot, segment.stop)
            # Heads that share a key head become rows of it: keys and values are never repeated.
            packed = query[:, rows].reshape(keys.shape[0], -1, keys.shape[2])
            mixed = scaled_dot_product_attention(
                packed[None], keys[None], values[None], attn_mask=bias, scale=scaling
            )
            parts.append(_row_major(mixed, segment.count)[0])
            offset += segment.count
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class BatchedLayout:
    """One attention call for all slots, padded to the longest: few launches on a GPU."""

    def __init__(self, cache: KVCache, segments: Sequence[Segment], num_heads: int) -> None:
        """Prepare masks and row maps of a pass; the arguments are those of `SlotwiseLayout`."""
        self._cache = cache
        self._group = num_heads // cache.kv_heads
        self._height = max(segment.count for segment in segments)
        self._width = max(segment.stop for segment in segments)
        device = cache.buffer.device
        table = torch.tensor([(each.slot, each.start, each.count) for each in segments])
        slots, starts, counts = table.unbind(1)
        rows = torch.arange(self._height)
        real = rows < counts[:, None]
        firsts = counts.cumsum(0) - counts
        # Padding repeats the segment's first row, so that whatever comes of it is finite.
        self._sources = (firsts[:, None] + rows * real).flatten().to(device)
        self._targets = real.flatten().nonzero()[:, 0].to(device)
        self._slots = slots.to(device)
        self._row_slots = slots.repeat_interleave(counts).to(device)
        self._row_positions = (starts[:, None] + rows)[real].to(device)
        columns = torch.arange(self._width)
        self._unwritten = (columns >= (starts + counts)[:, None]).to(device)
        self._bias = self._make_bias(segments, columns - starts[:, None])

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """As `Layout` says."""
        self._cache.write_rows(layer, self._row_slots, self._row_positions, key, value)
        # A mask alone would not do: rows that nobody wrote may be NaN, and 0 * NaN is NaN.
        keys, values = (
            taken.masked_fill_(self._unwritten[:, None, :, None], 0.0)
            for taken in self._cache.take(layer, self._slots, self._width)
        )
        heads, _, width = query.shape
        slots = len(self._slots)
        padded = query[:, self._sources].view(heads, slots, self._height, width)
        packed = padded.transpose(0, 1).reshape(slots, keys.shape[1], -1, width)
        mixed = scaled_dot_product_attention(
            packed, keys, values, attn_mask=self._bias, scale=scaling
        )
        return _row_major(mixed, self._height).flatten(0, 1)[self._targets]

    def _make_bias(self, segments: Sequence[Segment], own_columns: Tensor) -> Tensor:
        count, device = len(segments), self._cache.buffer.device
        visible = torch.ones((count, self._height, self._height), dtype=torch.bool)
        for index, segment in enumerate(segments):
            visible[index, : segment.count, : segment.count] = segment.visible
        own = own_columns.to(device)[:, None].expand(-1, self._height, -1)
        seen = visible.to(device).gather(2, own.clamp(0, self._height - 1)) | (own < 0)
        bias = _aligned_zeros((count, self._group, self._height, self._width), self._cache)
        bias.masked_fill_(~(seen & ~self._unwritten[:, None])[:, None], -math.inf)
        return bias.flatten(1, 2)[:, None]


def _row_major(mixed: Tensor, rows: int) -> Tensor:
    """`[slots, rows, heads, head_dim]` of `[slots, kv_heads, group * rows, head_dim]`."""
    # Kernels differ in the order they write; splitting an axis is a view of any of them.
    return mixed.unflatten(2, (-1, rows)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def _segment_bias(segment: Segment, group: int, cache: KVCache) -> Tensor | None:
    if bool(segment.visible.all()):
        return None
    bias = _aligned_zeros((group, segment.count, segment.stop), cache)
    hidden = ~segment.visible.to(cache.buffer.device)
    bias[:, :, segment.start :].masked_fill_(hidden, -math.inf)
    return bias.flatten(0, 1)


def _aligned_zeros(shape: tuple[int, ...], cache: KVCache) -> Tensor:
    *outer, width = shape
    padded = math.ceil(width / _ALIGNMENT) * _ALIGNMENT
    return cache.buffer.new_zeros((*outer, padded))[..., :width]
