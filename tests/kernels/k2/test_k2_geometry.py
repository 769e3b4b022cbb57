"""The kernel's index arithmetic, compiled for the CPU, against plain Python."""

from __future__ import annotations

import ctypes

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2.limits import MOST_POSITIONS
from jetflow_kernels.attention.k2.parameters import inverse

# Compiling the sources takes most of their time.
pytestmark = pytest.mark.slow
# The fixture is a library that keeps no state.
SHARED_FIXTURE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SHARED_FIXTURE
@given(prefix=st.integers(0, 200_000), rows=st.integers(1, 256), heads=st.integers(1, 128))
def test_chunks_are_those_of_the_plan(
    emulator: ctypes.CDLL, prefix: int, rows: int, heads: int
) -> None:
    found = emulator.emulated_chunk_length(prefix, rows, heads)
    assert found == plan.chunk_length(prefix, rows, heads)


@SHARED_FIXTURE
@given(prefix=st.integers(0, 200_000), rows=st.integers(1, 256), cluster=st.integers(1, 8))
def test_shares_are_those_of_the_plan(
    emulator: ctypes.CDLL, prefix: int, rows: int, cluster: int
) -> None:
    found = emulator.emulated_share_length(prefix, rows, cluster, inverse(cluster))
    assert found == plan.share_length(prefix, rows, cluster)


@SHARED_FIXTURE
@given(n=st.integers(0, MOST_POSITIONS - 1), divisor=st.integers(1, 256))
@example(MOST_POSITIONS - 1, 255)
@example(MOST_POSITIONS - 1, 256)
@example(MOST_POSITIONS - 256, 256)
def test_products_with_inverses_are_quotients(emulator: ctypes.CDLL, n: int, divisor: int) -> None:
    assert emulator.emulated_divided(n, inverse(divisor)) == n // divisor


@SHARED_FIXTURE
@given(
    prefix=st.integers(0, 400),
    words=st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4),
    nodes=st.integers(1, 256),
    tile=st.integers(0, 12),
    piece_end=st.integers(0, 900),
)
def test_shifted_words_show_what_a_row_sees(
    emulator: ctypes.CDLL,
    prefix: int,
    words: list[int],
    nodes: int,
    tile: int,
    piece_end: int,
) -> None:
    start = 64 * tile
    end = min(piece_end, prefix + min(nodes, 64 * len(words)))
    index = emulator.emulated_word_of(start, prefix)
    ones = 2**64 - 1

    def word(at: int) -> int:
        return ones if at < 0 else words[at] if at < len(words) else 0

    found = emulator.emulated_visible(start, end, prefix, word(index), word(index + 1))
    for column in range(64):
        position = start + column
        node = position - prefix
        seen = position < end and (node < 0 or bool(words[node // 64] >> (node % 64) & 1))
        assert bool(found >> column & 1) == seen
