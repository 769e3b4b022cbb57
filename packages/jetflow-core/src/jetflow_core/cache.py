"""The keys and values of every layer and slot, in one buffer."""

from collections.abc import Sequence

import torch
from torch import Tensor


class KVCache:
    """Keys and values `[2, layers, slots, kv_heads, rows, head_dim]` of all slots.

    Rows that were never written hold whatever the memory held; nobody may read past what they
    wrote. Lengths are the owner's business, so that the cache has no state but its buffer.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_slots: int,
        kv_heads: int,
        rows: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Allocate the buffer on `device`, uninitialised."""
        shape = (2, num_layers, num_slots, kv_heads, rows, head_dim)
        # One tensor for all layers: a commit is then one gather and one copy, whatever the depth.
        self.buffer = torch.empty(shape, dtype=dtype, device=device)

    @property
    def num_slots(self) -> int:
        """How many requests fit."""
        return self.buffer.shape[2]

    @property
    def kv_heads(self) -> int:
        """Key heads."""
        return self.buffer.shape[3]

    @property
    def rows(self) -> int:
        """Rows of a slot, drafted ones included."""
        return self.buffer.shape[4]

    def write(self, layer: int, slot: int, start: int, keys: Tensor, values: Tensor) -> None:
        """Store `keys` and `values` `[kv_heads, N, head_dim]` at rows `start .. start + N - 1`."""
        stop = start + keys.shape[1]
        self.buffer[0, layer, slot, :, start:stop] = keys
        self.buffer[1, layer, slot, :, start:stop] = values

    def read(self, layer: int, slot: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[kv_heads, stop, head_dim]` of rows `0 .. stop - 1`, as views."""
        return self.buffer[0, layer, slot, :, :stop], self.buffer[1, layer, slot, :, :stop]

    def write_rows(
        self, layer: int, slots: Tensor, positions: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Store row i of `keys` and `values` `[kv_heads, N, head_dim]` in a slot of its own.

        Args:
            layer: Which layer.
            slots: `[N]` on the cache's device.
            positions: `[N]` cache rows, same device.
            keys: What goes there.
            values: The same shape.
        """
        self.buffer[0, layer][slots, :, positions] = keys.transpose(0, 1)
        self.buffer[1, layer][slots, :, positions] = values.transpose(0, 1)

    def take(self, layer: int, slots: Tensor, stop: int) -> tuple[Tensor, Tensor]:
        """Copies of rows `0 .. stop - 1` of some slots, `[S, kv_heads, stop, head_dim]` each.

        Rows that were never written come along as they are.
        """
        stored = self.buffer[:, layer, :, :, :stop]
        return stored[0].index_select(0, slots), stored[1].index_select(0, slots)

    def compact(self, slot: int, start: int, rows: Sequence[int]) -> None:
        """Move rows `start + rows[i]` to `start + i` in every layer.

        Args:
            slot: Whose rows.
            start: The row that `rows` counts from.
            rows: Ascending; they need not be adjacent, and may overlap where they go.
        """
        still = next((i for i, row in enumerate(rows) if row != i), len(rows))
        if still == len(rows):
            return
        moved = torch.tensor(rows[still:], device=self.buffer.device) + start
        slot_rows = self.buffer[:, :, slot]
        # index_select copies, so sources are read before any of them is overwritten.
        slot_rows[:, :, :, start + still : start + len(rows)] = slot_rows.index_select(3, moved)
