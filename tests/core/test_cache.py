import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.cache import KVCache


def make_cache(rows: int = 12) -> KVCache:
    cache = KVCache(
        num_layers=2,
        num_slots=3,
        kv_heads=2,
        rows=rows,
        head_dim=4,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    cache.buffer.copy_(torch.arange(cache.buffer.numel()).view_as(cache.buffer))
    return cache


@given(st.integers(0, 4), st.sets(st.integers(0, 7), max_size=8).map(sorted))
def test_compact_moves_rows_to_the_front_of_their_slot_alone(start: int, rows: list[int]) -> None:
    cache = make_cache()
    before = cache.buffer.clone()
    cache.compact(1, start, rows)
    expected = before.clone()
    for place, row in enumerate(rows):
        expected[:, :, 1, :, start + place] = before[:, :, 1, :, start + row]
    kept = start + len(rows)
    assert torch.equal(cache.buffer[:, :, 1, :, :kept], expected[:, :, 1, :, :kept])
    assert torch.equal(cache.buffer[:, :, [0, 2]], before[:, :, [0, 2]])


def test_what_was_written_is_read_back_and_nothing_else_moves() -> None:
    cache = make_cache()
    before = cache.buffer.clone()
    keys, values = torch.randn(2, 3, 4).double(), torch.randn(2, 3, 4).double()
    cache.write(1, 2, 5, keys, values)
    read_keys, read_values = cache.read(1, 2, 8)
    assert read_keys.shape == (2, 8, 4)
    assert torch.equal(read_keys[:, 5:], keys)
    assert torch.equal(read_values[:, 5:], values)
    cache.buffer[:, 1, 2, :, 5:8] = before[:, 1, 2, :, 5:8]
    assert torch.equal(cache.buffer, before)


def test_sizes() -> None:
    cache = make_cache(rows=9)
    assert (cache.num_slots, cache.rows) == (3, 9)
