"""Both layouts against attention row by row, over caches that are NaN wherever nobody wrote."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.cache import KVCache
from jetflow_core.layouts import BatchedLayout, Segment, SlotwiseLayout
from torch import Tensor

HEADS, KV_HEADS, WIDTH = 6, 2, 8
GROUP = HEADS // KV_HEADS
SCALE = 0.3
LAYOUTS = (SlotwiseLayout, BatchedLayout)
# Prefix length and tree rows of each slot of a pass.
shapes_of_passes = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=4)


def poisoned_cache(num_slots: int, rows: int = 20) -> KVCache:
    cache = KVCache(
        num_layers=2,
        num_slots=num_slots,
        kv_heads=KV_HEADS,
        rows=rows,
        head_dim=WIDTH,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    cache.buffer.fill_(math.nan)
    return cache


def random_visible(count: int) -> Tensor:
    visible = torch.eye(count, dtype=torch.bool)
    for row in range(1, count):
        visible[row] |= visible[int(torch.randint(0, row, ()))]
    return visible


def reference(query: Tensor, keys: Tensor, values: Tensor, segment: Segment) -> Tensor:
    """Attention of one row and one head after the other, by the formula."""
    out = torch.empty(segment.count, HEADS, WIDTH, dtype=query.dtype)
    for row in range(segment.count):
        prefix = torch.arange(segment.start)
        seen = torch.cat((prefix, segment.start + segment.visible[row].nonzero()[:, 0]))
        for head in range(HEADS):
            scores = keys[head // GROUP, seen] @ query[head, row] * SCALE
            out[row, head] = scores.softmax(0) @ values[head // GROUP, seen]
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(deadline=None, max_examples=40)
@given(shapes=shapes_of_passes, seed=st.integers(0, 10**6))
def test_rows_see_their_prefix_and_their_ancestors_alone(
    shapes: list[tuple[int, int]], seed: int, layout: type[SlotwiseLayout | BatchedLayout]
) -> None:
    torch.manual_seed(seed)
    # One slot more than is used, and the used ones out of order.
    cache = poisoned_cache(len(shapes) + 1)
    slots = torch.randperm(len(shapes) + 1).tolist()
    total = sum(count for _, count in shapes)
    query = torch.randn(HEADS, total, WIDTH, dtype=torch.float64)
    key, value = torch.randn(2, KV_HEADS, total, WIDTH, dtype=torch.float64)
    segments, expected, offset = [], [], 0
    for slot, (start, count) in zip(slots, shapes, strict=False):
        cache.write(1, slot, 0, *torch.randn(2, KV_HEADS, start, WIDTH, dtype=torch.float64))
        segment = Segment(slot=slot, start=start, visible=random_visible(count))
        rows = slice(offset, offset + count)
        keys, values = (
            torch.cat((old, new[:, rows]), dim=1)
            for old, new in zip(cache.read(1, slot, start), (key, value), strict=True)
        )
        expected.append(reference(query[:, rows], keys, values, segment))
        segments.append(segment)
        offset += count
    before = cache.buffer.clone()
    out = layout(cache, segments, HEADS).attend(1, query, key, value, SCALE)
    torch.testing.assert_close(out, torch.cat(expected), rtol=0, atol=1e-12)
    _assert_only_the_new_rows_were_written(cache, before, segments, key)


def _assert_only_the_new_rows_were_written(
    cache: KVCache, before: Tensor, segments: list[Segment], key: Tensor
) -> None:
    written = []
    for segment in segments:
        rows = slice(segment.start, segment.stop)
        written.append(cache.buffer[0, 1, segment.slot, :, rows].clone())
        cache.buffer[:, 1, segment.slot, :, rows] = before[:, 1, segment.slot, :, rows]
    assert torch.equal(torch.cat(written, dim=1), key)
    assert torch.equal(cache.buffer.isnan(), before.isnan())
    assert torch.equal(cache.buffer.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_into_a_fused_projection_are_read_with_their_strides(
    layout: type[SlotwiseLayout | BatchedLayout],
) -> None:
    torch.manual_seed(0)
    fused = torch.randn(5, HEADS + 2 * KV_HEADS, WIDTH, dtype=torch.float64)
    views = [part.transpose(0, 1) for part in fused.split((HEADS, KV_HEADS, KV_HEADS), dim=1)]
    segments = [
        Segment(slot=slot, start=0, visible=random_visible(count))
        for slot, count in enumerate((2, 3))
    ]
    of_views, of_copies = (
        layout(poisoned_cache(2, rows=3), segments, HEADS).attend(0, *tensors, SCALE)
        for tensors in (views, [view.contiguous() for view in views])
    )
    assert torch.equal(of_views, of_copies)
    assert of_views.isfinite().all()
