"""How products of few rows are cut: what is compiled and measured for a number of rows.

Nothing here depends on values or on the device: a product of the same shapes and configuration has
the same bits in every run and on every card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from jetflow_kernels.ops.streamed.variants import Streamed

MOST_ROWS = 256
"""Rows that a product of few rows has at most."""
FEW_ROWS = 4
"""Rows that threads multiply by themselves at most; beyond, tensor cores do."""
MULTIPROCESSORS = 132
"""Of an H200: how many programs share a product; a constant, so that bits do not depend on the
card."""
LEAST_ROWS = 16
"""Rows of the smallest tile: fewer would not be multiplied by `wgmma`."""
LEAST_COLUMNS = 64
"""Columns of the result of the smallest tile."""
_AHEAD_COLUMNS = 256
"""Columns of the matrix that a program asks for before it waits for the kernel ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Tensor cores over equal shares of all tiles behind one another."""

    columns: int
    """Columns of the result in a tile: rows of the matrix."""
    rows: int
    depth: int
    """Inner dimension of one step."""
    stages: int
    """Steps in flight."""
    warps: int
    programs: int
    """Programs that share the product; 0: one for each tile, and nothing is put together."""

    @property
    def ahead(self) -> int:
        """Steps of the matrix that are asked for before the rows are there."""
        return _AHEAD_COLUMNS // self.depth

    @property
    def resident(self) -> int:
        """Programs that a multiprocessor is meant to hold at once, at least."""
        return max(1, self.programs // MULTIPROCESSORS)

    def __str__(self) -> str:
        shared = f"{self.programs} programs" if self.programs else "a program a tile"
        return (
            f"tiles {self.columns}x{self.rows}x{self.depth}, {self.stages} stages, "
            f"{self.warps} warps, {shared}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Few:
    """Threads that multiply and add by themselves, for 1 to ``FEW_ROWS`` rows."""

    columns: int
    """Columns of the result of a program: rows of the matrix, which it has whole."""
    depth: int
    """Inner dimension of what is loaded at once."""
    warps: int

    def __str__(self) -> str:
        return f"threads {self.columns}x{self.depth}, {self.warps} warps"


Config = Shares | Few | Streamed


class _Sizes(NamedTuple):
    columns: int
    depth: int
    stages: int
    warps: int
    programs: int
    rows: int = 0


_TWO, _ONE, _TILES = 2 * MULTIPROCESSORS, MULTIPROCESSORS, 0
# By the rows of a tile. First comes what is run where nothing was measured.
_PLAIN: dict[int, tuple[_Sizes, ...]] = {
    16: (
        _Sizes(128, 64, 5, 4, _TWO), _Sizes(128, 64, 5, 4, _TILES),
        _Sizes(64, 128, 5, 4, _TWO), _Sizes(64, 128, 5, 4, _TILES), _Sizes(128, 128, 5, 4, _ONE),
    ),
    32: (
        _Sizes(128, 64, 5, 4, _TWO), _Sizes(128, 64, 5, 4, _TILES),
        _Sizes(64, 64, 8, 4, _TWO), _Sizes(64, 64, 8, 4, _TILES), _Sizes(128, 128, 5, 4, _ONE),
    ),
    64: (
        _Sizes(128, 64, 4, 4, _TWO), _Sizes(128, 64, 4, 4, _TILES),
        _Sizes(64, 64, 6, 4, _TWO), _Sizes(64, 64, 6, 4, _TILES), _Sizes(256, 64, 5, 8, _ONE),
    ),
    128: (
        _Sizes(128, 64, 6, 8, _ONE), _Sizes(128, 64, 6, 8, _TILES), _Sizes(128, 64, 3, 4, _TWO),
        _Sizes(64, 64, 4, 4, _TWO), _Sizes(256, 64, 4, 16, _ONE),
    ),
    256: (
        _Sizes(128, 64, 4, 8, _ONE), _Sizes(128, 64, 4, 8, _TILES),
        _Sizes(256, 64, 4, 16, _ONE, rows=128), _Sizes(256, 64, 4, 16, _TILES, rows=128),
        _Sizes(128, 64, 3, 4, _TWO, rows=128),
    ),
}  # fmt: skip
_GATED: dict[int, tuple[_Sizes, ...]] = {
    16: (
        _Sizes(64, 64, 5, 4, _TWO), _Sizes(64, 64, 5, 4, _TILES), _Sizes(64, 128, 5, 4, _ONE),
        _Sizes(128, 64, 5, 8, _ONE),
    ),
    32: (
        _Sizes(64, 64, 5, 4, _TWO), _Sizes(64, 64, 5, 4, _TILES), _Sizes(64, 128, 5, 4, _ONE),
    ),
    64: (
        _Sizes(64, 64, 4, 4, _TWO), _Sizes(64, 64, 4, 4, _TILES), _Sizes(128, 64, 5, 8, _ONE),
    ),
    128: (
        _Sizes(128, 64, 4, 8, _ONE), _Sizes(128, 64, 4, 8, _TILES), _Sizes(64, 64, 6, 8, _ONE),
    ),
    256: (
        _Sizes(64, 64, 4, 8, _ONE), _Sizes(64, 64, 4, 8, _TILES),
        _Sizes(128, 64, 4, 8, _ONE, rows=128), _Sizes(128, 64, 4, 8, _TILES, rows=128),
    ),
}  # fmt: skip
_FEW = {
    False: (
        Few(columns=4, depth=1024, warps=4), Few(columns=2, depth=2048, warps=4),
        Few(columns=4, depth=1024, warps=2), Few(columns=4, depth=2048, warps=4),
    ),
    True: (Few(columns=4, depth=1024, warps=4), Few(columns=2, depth=1024, warps=4)),
}  # fmt: skip
# Exact products of float32 are there to check with, not to serve with.
_EXACT = _Sizes(64, 32, 2, 4, _TWO)
_EXACT_ROWS = 16


def rows_of_tile(rows: int) -> int:
    """Rows of the tile for so many rows: the next power of two, 16 to 256."""
    return max(LEAST_ROWS, 1 << max(rows - 1, 0).bit_length())


def configs_for(rows: int, dtype: torch.dtype, *, gated: bool) -> tuple[Config, ...]:
    """What is measured for a product; the first is what runs where nothing was.

    Args:
        rows: 1 to ``MOST_ROWS``.
        dtype: of the matrix.
        gated: whether the result is gated, so that each tile is of two halves.

    Raises:
        ValueError: ``rows`` is out of range.
    """
    if not 1 <= rows <= MOST_ROWS:
        raise ValueError(f"rows must be in 1..{MOST_ROWS}, got {rows}")
    tile = rows_of_tile(rows)
    few = _FEW[gated] if rows <= FEW_ROWS else ()
    if dtype == torch.float32:
        return (*few, _shares(_EXACT, _EXACT_ROWS))
    return (*few, *(_shares(sizes, tile) for sizes in (_GATED if gated else _PLAIN)[tile]))


def all_configs(dtype: torch.dtype, *, gated: bool) -> tuple[Config, ...]:
    """Everything that ``configs_for`` returns for any number of rows."""
    found = [
        config
        for rows in (1, *_PLAIN)
        for config in configs_for(rows, dtype, gated=gated)
    ]  # fmt: skip
    return tuple(dict.fromkeys(found))


def _shares(sizes: _Sizes, rows: int) -> Shares:
    return Shares(
        columns=sizes.columns, rows=sizes.rows or rows, depth=sizes.depth, stages=sizes.stages,
        warps=sizes.warps, programs=sizes.programs,
    )  # fmt: skip


def tiles_in(config: Shares, rows: int, outs: int) -> int:
    """Tiles of a product."""
    return -(-outs // config.columns) * -(-rows // config.rows)


def programs_in(config: Shares, rows: int, outs: int, ins: int) -> int:
    """Programs that a product starts."""
    tiles = tiles_in(config, rows, outs)
    line = tiles * -(-ins // config.depth)
    # Their product is counted in 32 bits.
    return max(1, min(config.programs or tiles, line, (2**31 - 1) // line - 1))
