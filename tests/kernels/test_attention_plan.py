"""Pieces of a prefix: a function of one request, within the room made for them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_kernels.attention import plan

HEADS = st.integers(1, 128)


@given(prefix=st.integers(0, 200_000), rows=st.integers(1, 256), heads=HEADS)
def test_pieces_cover_the_prefix(prefix: int, rows: int, heads: int) -> None:
    chunk = plan.chunk_length(prefix, rows, heads)
    pieces = plan.splits(prefix, rows, heads)
    assert chunk % 64 == 0 and chunk >= plan.MIN_CHUNK
    assert 1 <= pieces <= plan.most_splits(rows, heads) <= plan.MAX_SPLITS
    # The last piece has the remainder, which is shorter than a chunk, and the tree.
    assert 0 <= prefix - (pieces - 1) * chunk < chunk


@given(rows=st.integers(1, 255), prefix=st.integers(0, 50_000), heads=HEADS)
def test_one_row_more_changes_pieces_only_past_a_power_of_two(
    rows: int, prefix: int, heads: int
) -> None:
    same = plan.chunk_length(prefix, rows, heads) == plan.chunk_length(prefix, rows + 1, heads)
    assert same or rows & (rows - 1) == 0


@given(prefix=st.integers(0, 200_000), rows=st.integers(1, 256), cluster=st.integers(1, 8))
def test_shares_cover_prefix_and_tree(prefix: int, rows: int, cluster: int) -> None:
    share = plan.share_length(prefix, rows, cluster)
    assert share % 64 == 0 and share * cluster >= prefix + rows
    # Nobody has a tile more than an even cut would need.
    assert share - 64 < -(-(prefix + plan_bucket(rows)) // cluster)
    if rows < 256 and rows & (rows - 1):
        assert share == plan.share_length(prefix, rows + 1, cluster)


@given(
    prefix=st.integers(0, 60_000),
    rows=st.integers(1, 256),
    work=st.sampled_from([4096, 8192, 32768]),
    shortest=st.sampled_from([64, 256, 512]),
)
def test_other_pieces_fit_their_room(prefix: int, rows: int, work: int, shortest: int) -> None:
    pieces = plan.Pieces(work=work, shortest=shortest)
    needed = rows * plan.splits(prefix, rows, 32, pieces)
    assert plan.chunk_length(prefix, rows, 32, pieces) >= shortest
    assert needed <= max(rows, plan.partial_rows(rows, 1, 32, prefix + rows, pieces))


def plan_bucket(rows: int) -> int:
    return 1 << (rows - 1).bit_length()


@pytest.mark.parametrize(
    ("rows", "requests", "prefix", "cluster"),
    # Qwen3-8B: 2, 4 and 8 tiles of each of 8 heads alone, then small trees and batches.
    [
        (64, 1, 1024, 6), (128, 1, 1024, 3), (256, 1, 1024, 2), (256, 1, 16384, 2),
        (128, 1, 16384, plan.BY_LENGTH), (16, 1, 1024, 6), (16, 1, 16384, plan.BY_LENGTH),
        (16 * 8, 8, 1024, 3), (64 * 8, 8, 1024, 1), (64 * 32, 32, 1024, 1), (0, 0, 0, 1),
    ],
)  # fmt: skip
def test_one_round_of_programs(rows: int, requests: int, prefix: int, cluster: int) -> None:
    tiles = plan.tiles_for(rows, requests, 4, 128, torch.bfloat16)
    capacity = prefix + rows // max(requests, 1)
    found = plan.cluster_size(rows, requests, 4, 8, capacity=capacity, tile_rows=tiles.rows)
    assert found == cluster


@given(
    rows=st.integers(0, 2000), requests=st.integers(0, 40), capacity=st.integers(0, 40_000),
    tile_rows=st.sampled_from([64, 128]),
)  # fmt: skip
def test_clusters_that_fit_go_before_those_that_wait(
    rows: int, requests: int, capacity: int, tile_rows: int
) -> None:
    found = plan.cluster_size(rows, requests, 4, 8, capacity=capacity, tile_rows=tile_rows)
    each = -(-rows // max(requests, 1))
    tiles = requests * -(-each * 4 // tile_rows) * 8
    held = plan.CLUSTERS_HELD[tile_rows]
    assert found in range(plan.MAX_CLUSTER + 1)
    if found > 1 and tiles <= held[found - 2]:
        assert tiles <= held[found - 1]


@given(
    counts=st.lists(st.integers(0, 256), min_size=1, max_size=9),
    padding=st.integers(0, 9),
    group=st.integers(1, 16),
    tile=st.sampled_from([64, 128]),
)
def test_tiles_fit_the_most(counts: list[int], padding: int, group: int, tile: int) -> None:
    most = plan.most_tiles(sum(counts) + padding, len(counts), group, tile)
    assert sum(-(-count * group // tile) for count in counts) <= most
    if len(counts) == 1 and not padding:
        assert most == -(-counts[0] * group // tile)


@given(
    requests=st.lists(st.tuples(st.integers(0, 256), st.integers(0, 60_000)), min_size=1),
    heads=HEADS,
    padding=st.integers(0, 9),
    page=st.sampled_from([16, 128]),
)
def test_partial_results_fit_the_room_made_from_shapes(
    requests: list[tuple[int, int]], heads: int, padding: int, page: int
) -> None:
    needed = 0
    for rows, prefix in requests:
        if rows and plan.splits(prefix, rows, heads) > 1:
            needed += rows * plan.splits(prefix, rows, heads)
    pages = max(-(-(rows + prefix) // page) for rows, prefix in requests)
    total = sum(rows for rows, _ in requests) + padding
    room = plan.partial_rows(total, len(requests), heads, pages * page)
    assert needed <= room
    # Requests in one piece keep their places too: the kernel counts all of them.
    counted = sum(n * plan.splits(p, n, heads) for n, p in requests if n)
    assert counted <= room or room == 0


@pytest.mark.parametrize(
    ("rows", "requests", "tile"), [(1, 1, 64), (16, 1, 64), (17, 1, 128), (32, 32, 64)]
)
def test_small_trees_get_small_tiles(rows: int, requests: int, tile: int) -> None:
    assert plan.tiles_for(rows, requests, 4, 128, torch.bfloat16).rows == tile


def test_pages_are_looked_up_ahead_where_tiles_lie_within_them() -> None:
    small, large = (plan.tiles_for(rows, 1, 4, 128, torch.bfloat16) for rows in (1, 256))
    assert [small.looks_up(page) for page in (16, 64, 128, 256)] == [False, False, True, True]
    assert [large.looks_up(page) for page in (16, 64, 128, 256)] == [False, True, True, True]
    assert not plan.tiles_for(1, 1, 4, 128, torch.float32).looks_up(128)
