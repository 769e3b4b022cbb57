"""The compiled variants of the sm_90a kernel and what each needs of a multiprocessor.

``geometry.cuh`` holds the same numbers for the compiler; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import torch

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan

TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}
_ELEMENTS = {torch.float16: "Half", torch.bfloat16: "Bfloat"}
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
    swift: bool = False
    """Whether the way to the first scores and from the last ones to the results is shortened:
    queries come by bulk copies, lengths are asked for ahead, and programs of a cluster share what
    is put together in finer parts. The bits are the same. Not run on a card yet."""

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        swift = "_swift" if self.swift else ""
        return f"tree_attention_{TYPES[self.dtype]}_d{self.dim}_m{self.rows}{swift}"

    @property
    def element(self) -> str:
        """The sources' name for the type."""
        return _ELEMENTS[self.dtype]

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
        barriers = 4 * self.stages + (3 if self.swift else 1)
        return 2 * self.rows * self.dim + 2 * self.stages * tile + 8 * barriers


def configuration_for(
    arguments: TreeAttentionArguments, tiles: plan.Tiles | None = None, *, swift: bool = False
) -> Configuration:
    """The variant for a batch that ``supports`` has nothing against.

    Args:
        arguments: of the call.
        tiles: their rows choose the variant; None: ``tiles_for`` the shapes.
        swift: as in ``Configuration``.
    """
    q, pool = arguments.q, arguments.k_pool
    rows, heads, dim = q.shape
    requests, group = arguments.prefix_len.shape[0], heads // pool.shape[2]
    tiles = tiles or plan.tiles_for(rows, requests, group, dim, q.dtype)
    return Configuration(dtype=q.dtype, dim=dim, rows=tiles.rows, swift=swift)


CONFIGURATIONS = tuple(
    Configuration(dtype=dtype, dim=dim, rows=rows)
    for dtype, dim, rows in product(TYPES, HEAD_DIMS, TILE_ROWS)
)
SWIFT_CONFIGURATIONS = tuple(replace(one, swift=True) for one in CONFIGURATIONS)
"""Not run on a card yet, and never chosen without being asked for."""
