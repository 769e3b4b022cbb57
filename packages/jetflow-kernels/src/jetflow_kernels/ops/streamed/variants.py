"""The compiled variants of the product kernel, and how a product is cut for them.

``shape.cuh`` holds the same sizes for the compiler; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from jetflow_kernels import nvcc
from jetflow_kernels.attention.k2 import build as attention

TYPES = {torch.float16: ("fp16", "Half"), torch.bfloat16: ("bf16", "Bfloat")}
TILE_ROWS = (16, 32, 64, 128)
TILE_COLUMNS = (64, 128)
"""Rows of the matrix in a tile; where results are gated, half of them are gates."""
STEP = 64
"""Inner dimension of a stage."""
SHARED_BYTES = 232_448
"""Of a multiprocessor, what one program may have."""
_BARRIER_ROOM = 1024
MULTIPROCESSORS = 132
"""Of an H200: most programs of a product whose tiles are not shared. Changes no bits."""
_CUTS = ((64, 1), (64, 2), (128, 1), (128, 2), (128, 4))
"""Columns of a tile and programs that share it: what is measured."""
_FOLDER = Path(__file__).parent
SOURCES = nvcc.Sources(main=_FOLDER / "product.cu", folders=(_FOLDER, *attention.SOURCES.folders))


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """How a product is cut: whole rows of tiles, the inner dimension in shares."""

    rows: int
    """Of a tile: one of ``TILE_ROWS``, at least those of the product."""
    columns: int
    """Of a tile: one of ``TILE_COLUMNS``."""
    shares: int
    """Programs of a cluster, which take a tile together: a power of two, 4 at most."""

    @property
    def stages(self) -> int:
        """Stages in flight."""
        return (SHARED_BYTES - _BARRIER_ROOM) // (128 * (self.columns + self.rows))

    @property
    def threads(self) -> int:
        """Threads of a program: a warpgroup for every 64 columns, and a warp."""
        return 2 * self.columns + 32

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program: stages and barriers."""
        return self.stages * 128 * (self.columns + self.rows) + 8 * (2 * self.stages + 1)

    def __str__(self) -> str:
        together = "alone" if self.shares == 1 else f"in clusters of {self.shares}"
        return f"streams {self.columns}x{self.rows}x{STEP}, {self.stages} stages, {together}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One build of ``product.cu``."""

    dtype: torch.dtype
    rows: int
    columns: int
    gated: bool

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        kind = "_gated" if self.gated else ""
        return f"product_{TYPES[self.dtype][0]}_{self.columns}x{self.rows}{kind}"


VARIANTS = tuple(
    Variant(dtype=dtype, rows=rows, columns=columns, gated=gated)
    for dtype in TYPES
    for rows in TILE_ROWS
    for columns in TILE_COLUMNS
    for gated in (False, True)
)


def variant_of(config: Streamed, dtype: torch.dtype, *, gated: bool) -> Variant:
    """The build that runs a product which is cut so.

    Args:
        config: how it is cut.
        dtype: of the matrix.
        gated: whether results are gated.
    """
    return Variant(dtype=dtype, rows=config.rows, columns=config.columns, gated=gated)


def programs_for(config: Streamed, tiles: int) -> int:
    """Programs of a product: one for each share, or as many as have equally many tiles.

    Args:
        config: how it is cut.
        tiles: of it.
    """
    if config.shares > 1:
        return tiles * config.shares
    return -(-tiles // -(-tiles // MULTIPROCESSORS))


def streamed_for(rows: int, dtype: torch.dtype) -> tuple[Streamed, ...]:
    """Ways to cut a product of some rows; none for types and numbers that no variant has.

    Args:
        rows: of the product, from 1 on.
        dtype: of the matrix.
    """
    tile = next((tile for tile in TILE_ROWS if rows <= tile), None)
    if tile is None or dtype not in TYPES:
        return ()
    return tuple(Streamed(rows=tile, columns=columns, shares=shares) for columns, shares in _CUTS)


@cache
def cubin(variant: Variant) -> bytes:
    """The machine code of a variant, compiled now where no build is kept.

    Raises:
        BuildError: there is no compiler, or it failed; the message says what it said.
    """
    return build(nvcc.cache_folder(), variant).read_bytes()


def build(folder: Path, variant: Variant) -> Path:
    """The file of machine code in ``folder``; beside it, ``.txt`` holds what ptxas reported.

    Args:
        folder: kept there.
        variant: which kernel.

    Raises:
        BuildError: there is no compiler, or it failed; the message says what it said.
    """
    defines: dict[str, str | int] = {
        "KERNEL_NAME": variant.name,
        "KERNEL_ELEMENT": TYPES[variant.dtype][1],
        "KERNEL_ROWS": variant.rows,
        "KERNEL_COLUMNS": variant.columns,
        "KERNEL_GATED": int(variant.gated),
    }
    return nvcc.build(folder, SOURCES, variant.name, tuple(defines.items()))
