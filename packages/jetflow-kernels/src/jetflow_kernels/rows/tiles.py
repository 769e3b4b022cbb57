"""The sizes for which the kernel of row attention is compiled.

They follow from the head dim and the type alone, so a row's bits depend on nothing else in its
batch. Few registers and little shared memory matter most: what a program waits for is hidden by the
other programs of its multiprocessor, six of them up to a head dim of 128.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jetflow_kernels.round.checks import power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """One choice."""

    columns: int
    """Keys of a tile."""
    warps: int
    stages: int
    """Tiles of keys and values on their way or in use."""


def width_of(dim: int) -> int:
    """Head dims of a tile: a power of two, at least 16."""
    return power_of_two(dim, least=16)


def tiles_for(dim: int, dtype: torch.dtype) -> Tiles:
    """The tiles for a head dim and the type of the queries."""
    width = width_of(dim)
    if dtype == torch.float32:
        return Tiles(columns=max(16, min(32, 2048 // width)), warps=4, stages=1)
    return Tiles(columns=max(16, min(64, 4096 // width)), warps=4, stages=3)
