"""The paged cache of vLLM's CPU kernels: rows written, read, moved, and attended to as a tree."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_serve.cpu_cache import keys_values, move_rows, read_rows
from jetflow_serve.paged_attention import attend_tree
from torch import Tensor

BLOCKS, HEADS, BLOCK, SIZE = 6, 2, 4, 8


def _filled(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A cache, written row by row as the kernels do, with its rows' keys and values."""
    random = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, BLOCKS * BLOCK, HEADS, SIZE, generator=random)
    cache = torch.full((BLOCKS, HEADS, BLOCK, 2 * SIZE), torch.nan)
    memory = cache.view(BLOCKS, HEADS, 2 * BLOCK * SIZE)
    for slot in range(BLOCKS * BLOCK):
        block, offset = divmod(slot, BLOCK)
        for place in range(SIZE):
            memory[block, :, place * BLOCK + offset] = keys[slot, :, place]
            memory[block, :, BLOCK * SIZE + offset * SIZE + place] = values[slot, :, place]
    return cache, keys, values


def test_views_reach_the_cache() -> None:
    cache, keys, values = _filled(0)
    seen_keys, seen_values = keys_values(cache)
    assert seen_keys.data_ptr() == cache.data_ptr()
    torch.testing.assert_close(seen_keys[2, :, :, 3], keys[11], rtol=0, atol=0)
    torch.testing.assert_close(seen_values[2, :, 3], values[11], rtol=0, atol=0)


@given(st.lists(st.integers(0, BLOCKS * BLOCK - 1), min_size=1, max_size=9))
def test_rows_are_read_by_slot(slots: list[int]) -> None:
    cache, keys, values = _filled(1)
    found_keys, found_values = read_rows(cache, torch.tensor(slots))
    torch.testing.assert_close(found_keys, keys[slots].transpose(0, 1), rtol=0, atol=0)
    torch.testing.assert_close(found_values, values[slots].transpose(0, 1), rtol=0, atol=0)


@given(st.data())
def test_rows_are_moved_all_at_once(data: st.DataObject) -> None:
    cache, keys, values = _filled(2)
    targets = data.draw(
        st.lists(st.integers(0, BLOCKS * BLOCK - 1), min_size=1, max_size=9, unique=True)
    )
    sources = [data.draw(st.integers(0, BLOCKS * BLOCK - 1)) for _ in targets]
    move_rows(cache, torch.tensor(sources), torch.tensor(targets))
    for rows, found in zip((keys, values), read_rows(cache, torch.arange(24)), strict=True):
        wanted = rows.clone()
        wanted[targets] = rows[sources]
        torch.testing.assert_close(found, wanted.transpose(0, 1), rtol=0, atol=0)


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(1, 7), st.integers(0, 99))
def test_a_row_of_a_tree_is_the_end_of_its_own_path(context: int, rows: int, seed: int) -> None:
    """Attention of a row equals plain attention over context and path, in any blocks."""
    cache, keys, values = _filled(seed)
    random = torch.Generator().manual_seed(seed)
    table = torch.randperm(BLOCKS, generator=random)
    parents = [-1] + [int(torch.randint(row, (1,), generator=random)) for row in range(1, rows)]
    sight = torch.zeros(rows, rows, dtype=torch.bool)
    for row, parent in enumerate(parents):
        sight[row] = sight[parent] if row else False
        sight[row, row] = True
    query = torch.randn(rows, 4, SIZE, generator=random)
    found = attend_tree(query, cache, table, context, sight, 0.3)
    assert found.isfinite().all()
    places = torch.arange(context + rows)
    slots = table[places // BLOCK] * BLOCK + places % BLOCK
    for row in range(rows):
        path = [*range(context), *(context + sight[row].nonzero().flatten()).tolist()]
        for head in range(4):
            own_keys, own_values = (part[slots[path], head // 2] for part in (keys, values))
            weights = (own_keys @ query[row, head] * 0.3).softmax(0)
            wanted = weights @ own_values
            torch.testing.assert_close(
                found[row, head * SIZE : (head + 1) * SIZE], wanted, rtol=1e-4, atol=1e-5
            )
