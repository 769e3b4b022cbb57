"""What a pass of a stack reads and writes beside its weights: packed rows and paged pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from jetflow_core.stacks.shape import StackShape


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackedRows:
    """The rows of a pass, all requests' one behind the other; their number is fixed.

    The tensors may be static buffers that are filled anew for each pass.

    Attributes:
        tokens: `[T]` int64; those of padding rows are any tokens of the vocabulary.
        positions: `[T]` int32 or int64, below the stack's `context_length`.
        slots: `[T]` int64: where keys and values of each row go in the pools, page times page
            size plus the row in the page; -1 for padding rows, which are written nowhere.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor

    def __post_init__(self) -> None:
        rows = tuple(self.tokens.shape)
        if len(rows) != 1 or not rows[0]:
            raise ValueError(f"tokens must be [T] with T at least 1, got {list(rows)}")
        for name, dtypes in (
            ("tokens", (torch.int64,)),
            ("positions", (torch.int32, torch.int64)),
            ("slots", (torch.int64,)),
        ):
            tensor: Tensor = getattr(self, name)
            if tuple(tensor.shape) != rows:
                raise ValueError(
                    f"{name} must be [T] like tokens, got {list(tensor.shape)} beside {list(rows)}"
                )
            if tensor.dtype not in dtypes:
                raise ValueError(
                    f"{name} must be {' or '.join(map(str, dtypes))}, got {tensor.dtype}"
                )

    @property
    def count(self) -> int:
        """Rows of the pass, padding included."""
        return self.tokens.shape[0]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KVPools:
    """Pages of keys and values, one pool of each a layer.

    Attributes:
        keys: `[pages, page, kv_heads, head_dim]` of each layer.
        values: Likewise.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls,
        shape: StackShape,
        *,
        pages: int,
        page: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> Self:
        """Pools of zeros for a stack, all of them views of one buffer.

        Args:
            shape: Of the stack.
            pages: Pages of each pool.
            page: Rows of a page.
            dtype: Of the stack's weights.
            device: Where they go.

        Raises:
            ValueError: a size is below 1.
        """
        for name, size in (("pages", pages), ("page", page)):
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        sizes = (shape.num_layers, 2, pages, page, shape.num_kv_heads, shape.head_dim)
        layers = torch.zeros(sizes, dtype=dtype, device=device).unbind(0)
        return cls(keys=tuple(each[0] for each in layers), values=tuple(each[1] for each in layers))

    def check(self, shape: StackShape, dtype: torch.dtype) -> None:
        """Refuses pools that do not fit a stack.

        Raises:
            ValueError: naming what differs.
        """
        for name, pools in (("keys", self.keys), ("values", self.values)):
            if len(pools) != shape.num_layers:
                raise ValueError(f"{len(pools)} pools of {name} for {shape.num_layers} layers")
            _check_pools(name, pools, (shape.num_kv_heads, shape.head_dim), dtype)


def _check_pools(
    name: str, pools: Sequence[Tensor], row: tuple[int, int], dtype: torch.dtype
) -> None:
    first = pools[0]
    for layer, pool in enumerate(pools):
        if pool.dim() != 4 or tuple(pool.shape[2:]) != row or pool.shape != first.shape:
            raise ValueError(
                f"{name} of layer {layer} must be [pages, page, {row[0]}, {row[1]}] like those of "
                f"layer 0, got {list(pool.shape)}"
            )
        if pool.dtype != dtype:
            raise ValueError(f"{name} of layer {layer} must be {dtype}, got {pool.dtype}")
