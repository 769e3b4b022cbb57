"""How tree attention is cut into pieces: by the shapes of the call, or by each request alone.

A row's bits never depend on what the other requests of its batch hold, nor on the machine: the
numbers here are constants, not properties of a device. The length of a chunk follows from the
request's prefix and rows. Tiles and clusters follow from the shapes of the whole batch, or, ``Cut``
``by_request``, are the same for all batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch

Cut = Literal["by_shapes", "by_request"]
"""What tiles and clusters are chosen by. ``by_shapes``: the rows and requests of the batch, the
faster choice. ``by_request``: nothing of the batch, so that a request has the same bits in all."""
CUTS: tuple[Cut, ...] = get_args(Cut)

WORD_BITS = 64
"""Tree rows that one ancestor word names."""
MAX_WORDS = 4
MAX_REQUESTS = 4096
MAX_SPLITS = 32
"""Pieces of one prefix at most: what the merge reads of one row."""
MIN_CHUNK = 128
"""Prefix rows of a piece at least: fewer cost more in partial results than they save."""
SPLIT_WORK = 16384
"""Rows times query heads times pieces wanted of a request alone: about one wave of 132 tiles of
128 rows."""
MAX_CLUSTER = 8
"""Programs of a cluster at most: any card of capability 9.0 can place eight."""
BY_LENGTH = 0
"""In place of a cluster's size: pieces by ``chunk_length``, put together by a second kernel."""
CLUSTERS_HELD = {
    64: (264, 132, 86, 62, 44, 40, 30, 30),
    128: (132, 66, 43, 30, 22, 20, 15, 15),
}
"""Clusters of 1, 2, ... programs that an H200 holds at once, by the rows of a tile: 132
multiprocessors in eight groups, none of which a cluster leaves. Sizes 1, 2, 4 and 8 were asked of
the driver; of 128 rows they fit no groups but seven of 16 to 18 and one of 8 to 10, from which the
others follow; of 64 rows the others are twice those of 128. Constants, not properties of the
device, so that bits do not depend on the card."""
HEAD_DIMS = (64, 128, 256)
PAGES = (16, 256)
"""Smallest and largest number of rows in a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """How long the pieces of a prefix are. All calls that must agree bit for bit use the same."""

    work: int = SPLIT_WORK
    """As ``SPLIT_WORK``."""
    shortest: int = MIN_CHUNK
    """As ``MIN_CHUNK``; a multiple of 64."""


PIECES = Pieces()


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Microseconds of the CUDA version on an H200, from the times of a table of shapes."""

    tile: float
    """64 positions of a tile."""
    item: float
    """A tile of any length: its launch, first loads, and results."""
    share: float = 1.5
    """What programs of a cluster wait for each other and send: estimated, where 3.2 were measured
    when they fetched each other's results."""
    merge: float = 6.0
    """The second kernel, and the partial results it reads."""


COSTS = {64: Costs(tile=0.6, item=6.0), 128: Costs(tile=0.72, item=8.5)}
"""By the rows of a tile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The sizes a kernel is compiled for."""

    rows: int
    """Packed rows (tree row, query head of one key head) of a tile."""
    columns: int
    """Keys of a tile; divides 64, so that a tile lies within one ancestor word."""
    warps: int
    stages: int
    """Tiles of keys and values in flight."""
    programs: int
    """Programs started for each multiprocessor."""
    by_page: bool
    """Whether pages are looked up once a tile, and one tile ahead, where tiles lie within pages;
    else for each key, which waits for one read before the next is asked for."""

    def looks_up(self, page: int) -> bool:
        """Whether the page of a tile is looked up once, with pages of ``page`` rows."""
        if not self.by_page or page % self.columns:
            return False
        # Where small tiles are whole pages, ptxas has no registers left for the page ahead.
        return (self.rows, page) != (64, self.columns)


def tiles_for(rows: int, requests: int, group: int, dim: int, dtype: torch.dtype) -> Tiles:
    """The tiles for a batch of these capacities; the smaller ones where most trees fit in one.

    Args:
        rows: rows of ``q``.
        requests: requests of the batch.
        group: query heads of a key head.
        dim: head dim.
        dtype: of ``q``.
    """
    if dtype != torch.float32 and dim != 256 and rows * group <= 64 * requests:
        return Tiles(rows=64, columns=64, warps=4, stages=3, programs=2, by_page=True)
    return tiles_of_all(dim, dtype)


def tiles_of_all(dim: int, dtype: torch.dtype) -> Tiles:
    """The tiles for every batch where cuts are ``by_request``: those that take large trees.

    Args:
        dim: head dim.
        dtype: of ``q``.
    """
    if dtype == torch.float32:
        warps = 4 if dim == 64 else 8
        return Tiles(rows=32, columns=32, warps=warps, stages=1, programs=2, by_page=False)
    if dim == 256:
        return Tiles(rows=64, columns=32, warps=8, stages=2, programs=1, by_page=True)
    return Tiles(rows=128, columns=64, warps=8, stages=3, programs=1, by_page=True)


def prefers_cuda(dim: int, dtype: torch.dtype) -> bool:
    """Whether the CUDA version is the faster one: for all that it takes, as measured on an H200.

    Args:
        dim: head dim.
        dtype: of ``q``.
    """
    return dtype != torch.float32 and dim != 256


def most_splits(rows: int, heads: int, pieces: Pieces = PIECES) -> int:
    """Pieces that the prefix of a tree of ``rows`` rows is cut into at most.

    Counted for the next power of two of ``rows``, so that a few rows more change no bits.
    """
    bucket = 1 << max(rows - 1, 0).bit_length()
    return min(MAX_SPLITS, max(1, pieces.work // (bucket * heads)))


def chunk_length(prefix: int, rows: int, heads: int, pieces: Pieces = PIECES) -> int:
    """Prefix rows of a piece, a multiple of 64; the last piece has the remainder and the tree."""
    bucket = 1 << max(rows - 1, 0).bit_length()
    even = -(-(prefix + bucket) // most_splits(rows, heads, pieces))
    return max(pieces.shortest, -(-even // WORD_BITS) * WORD_BITS)


def splits(prefix: int, rows: int, heads: int, pieces: Pieces = PIECES) -> int:
    """Pieces of one request, at least 1 and at most ``most_splits``."""
    return prefix // chunk_length(prefix, rows, heads, pieces) + 1


def cluster_size(
    rows: int, requests: int, group: int, kv_heads: int, *, capacity: int, tile_rows: int
) -> int:
    """Programs that share a tile in the CUDA version, or ``BY_LENGTH``: the faster by ``COSTS``.

    Clusters that the card does not hold at once wait for others to end, which costs more than
    anything else, so that the largest size is seldom the best one. Few tiles behind a long prefix
    are worth more programs than fit in clusters: they are cut by length. Counted for trees of equal
    size and requests as long as their pages allow, since the prefix is known to the device only; a
    rule of shapes alone, so that a call of the same shapes cuts a request in the same way whatever
    else is in the batch.

    Args:
        rows: rows of ``q``.
        requests: requests of the batch.
        group: query heads of a key head.
        kv_heads: key heads.
        capacity: rows that the pages of one request hold.
        tile_rows: packed rows of a tile, 64 or 128.
    """
    each = -(-rows // max(requests, 1))
    tiles = requests * -(-each * group // tile_rows) * kv_heads
    prefix, costs = max(capacity - each, 0), COSTS[tile_rows]

    def microseconds(size: int) -> float:
        if size == BY_LENGTH:
            length = chunk_length(prefix, each, group * kv_heads)
            started = tiles * splits(prefix, each, group * kv_heads)
            rounds = -(-started // CLUSTERS_HELD[tile_rows][0])
            return rounds * (costs.item + length / 64 * costs.tile) + costs.merge
        rounds = -(-tiles // CLUSTERS_HELD[tile_rows][size - 1])
        shared = costs.share if size > 1 else 0.0
        return rounds * (costs.item + shared + share_length(prefix, each, size) / 64 * costs.tile)

    return min((*range(1, MAX_CLUSTER + 1), BY_LENGTH), key=microseconds)


def share_length(prefix: int, rows: int, cluster: int) -> int:
    """Positions of each of the programs of a cluster that share a request, a multiple of 64.

    Prefix and tree are shared alike, the tree counted as the next power of two of its rows; the
    last programs may have less or nothing.
    """
    bucket = 1 << max(rows - 1, 0).bit_length()
    even = -(-(prefix + bucket) // cluster)
    return -(-even // WORD_BITS) * WORD_BITS


def most_tiles(rows: int, requests: int, group: int, tile_rows: int) -> int:
    """Tiles of one key head that no batch of these capacities exceeds."""
    # A request's packed rows are a multiple of this, so its last tile is never emptier.
    step = math.gcd(group, tile_rows)
    return (rows * group + requests * (tile_rows - step)) // tile_rows


def partial_rows(
    rows: int, requests: int, heads: int, capacity: int, pieces: Pieces = PIECES
) -> int:
    """Room for partial results, in rows of all heads, that no batch of these capacities exceeds.

    Args:
        rows: rows of ``q``.
        requests: requests of the batch.
        heads: query heads.
        capacity: rows that the pages of one request hold.
        pieces: their lengths.

    Returns:
        0 where no request can be split.
    """
    most = min(MAX_SPLITS, capacity // pieces.shortest + 1)
    if capacity <= pieces.shortest:
        return 0
    # rows * most_splits(rows) is at most work // heads, or rows where that is larger.
    return min(rows * most, rows + requests * (pieces.work // heads))
