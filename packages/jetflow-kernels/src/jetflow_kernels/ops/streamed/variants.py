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
COLUMNS = 128
"""Rows of the matrix in a tile."""
STEP = 64
"""Inner dimension of a stage."""
THREADS = 288
SHARES = (1, 2, 4)
"""Programs that take a tile together; each is measured."""
_STAGES = {16: 6, 32: 5, 64: 4, 128: 3}
_FOLDER = Path(__file__).parent
SOURCES = nvcc.Sources(main=_FOLDER / "product.cu", folders=(_FOLDER, *attention.SOURCES.folders))


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """How a product is cut: whole rows of tiles, the inner dimension in shares."""

    rows: int
    """Of a tile: one of ``TILE_ROWS``, at least those of the product."""
    shares: int
    """Programs of a cluster, which take a tile together."""

    @property
    def stages(self) -> int:
        """Stages in flight."""
        return _STAGES[self.rows]

    def __str__(self) -> str:
        together = "alone" if self.shares == 1 else f"in clusters of {self.shares}"
        return f"streams {COLUMNS}x{self.rows}x{STEP}, {self.stages} stages, {together}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One build of ``product.cu``."""

    dtype: torch.dtype
    rows: int
    gated: bool

    @property
    def name(self) -> str:
        """The kernel's symbol."""
        return f"product_{TYPES[self.dtype][0]}_{self.rows}{'_gated' if self.gated else ''}"

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a program: stages and barriers."""
        stages = _STAGES[self.rows]
        return stages * 128 * (COLUMNS + self.rows) + 8 * (2 * stages + 1)


VARIANTS = tuple(
    Variant(dtype=dtype, rows=rows, gated=gated)
    for dtype in TYPES
    for rows in TILE_ROWS
    for gated in (False, True)
)


def streamed_for(rows: int, dtype: torch.dtype) -> tuple[Streamed, ...]:
    """Ways to cut a product of some rows; none for types and numbers that no variant has.

    Args:
        rows: of the product, from 1 on.
        dtype: of the matrix.
    """
    tile = next((tile for tile in TILE_ROWS if rows <= tile), None)
    if tile is None or dtype not in TYPES:
        return ()
    return tuple(Streamed(rows=tile, shares=shares) for shares in SHARES)


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
        "KERNEL_GATED": int(variant.gated),
    }
    return nvcc.build(folder, SOURCES, variant.name, tuple(defines.items()))
