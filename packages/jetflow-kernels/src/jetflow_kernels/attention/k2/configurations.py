"""The compiled variants of the sm_90a kernel and what each needs of a multiprocessor.

``geometry.cuh`` holds the same numbers for the compiler; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
HEAD_DIMS = (64, 128)
TILE_ROWS = (64, 128)
LANES = 128
"""Threads of a warpgroup."""
STEP = 64
"""Positions at whose multiples tiles begin; a row of a half tile has as many values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One kernel of ``tree_attention.cu``."""

    dtype: torch.dtype
    dim: int
    rows: int
    """Packed rows of a tile, 64 for each consumer warpgroup."""

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        return f"tree_attention_{TYPES[self.dtype]}_d{self.dim}_m{self.rows}"

    @property
    def columns(self) -> int:
        """Keys of a tile."""
        return 64 if self.rows == 64 else 128

    @property
    def programs(self) -> int:
        """Programs that share a multiprocessor."""
        return 2 if self.rows == 64 else 1

    @property
    def stages(self) -> int:
        """Tiles of keys, and of values, in flight."""
        return 4 if self.dim == 64 else 3

    @property
    def threads(self) -> int:
        """Threads of a program: one producer warpgroup and the consumers."""
        return LANES * (1 + self.rows // 64)

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program: queries, keys, values and the barriers."""
        tile = 2 * self.columns * self.dim
        return 2 * self.rows * self.dim + 2 * self.stages * tile + 8 * 4 * self.stages


CONFIGURATIONS = tuple(
    Configuration(dtype=dtype, dim=dim, rows=rows)
    for dtype, dim, rows in product(TYPES, HEAD_DIMS, TILE_ROWS)
)
