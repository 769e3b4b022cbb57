import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.attention import Pass, Segment, attend, visibility_bias
from jetflow_core.cache import KVCache
from torch import Tensor

HEADS, KV_HEADS, WIDTH = 6, 2, 8
GROUP = HEADS // KV_HEADS
SCALE = 0.3
CPU = torch.device("cpu")


def poisoned_cache(num_slots: int, rows: int) -> KVCache:
    cache = KVCache(
        num_layers=2,
        num_slots=num_slots,
        kv_heads=KV_HEADS,
        rows=rows,
        head_dim=WIDTH,
        dtype=torch.float64,
        device=CPU,
    )
    cache.buffer.fill_(math.nan)
    return cache


def reference(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
    """Attention of one row and one head after the other, by the formula."""
    out = torch.empty(query.shape[1], HEADS, WIDTH, dtype=query.dtype)
    for head in range(HEADS):
        for row in range(query.shape[1]):
            seen = visible[row].nonzero()[:, 0]
            scores = keys[head // GROUP, seen] @ query[head, row] * SCALE
            out[row, head] = scores.softmax(0) @ values[head // GROUP, seen]
    return out


def random_visible(count: int) -> Tensor:
    visible = torch.eye(count, dtype=torch.bool)
    for row in range(1, count):
        visible[row] |= visible[int(torch.randint(0, row, ()))]
    return visible


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=3),
    st.integers(0, 10**6),
)
def test_segments_attend_over_their_own_slots_alone(
    shapes: list[tuple[int, int]], seed: int
) -> None:
    torch.manual_seed(seed)
    cache = poisoned_cache(len(shapes) + 1, 20)
    total = sum(count for _, count in shapes)
    query = torch.randn(1, HEADS, total, WIDTH, dtype=torch.float64)
    key, value = torch.randn(2, 1, KV_HEADS, total, WIDTH, dtype=torch.float64)
    segments, expected, offset = [], [], 0
    for slot, (start, count) in enumerate(shapes):
        prefix_keys, prefix_values = torch.randn(2, KV_HEADS, start, WIDTH, dtype=torch.float64)
        cache.write(1, slot, 0, prefix_keys, prefix_values)
        visible = random_visible(count)
        bias = visibility_bias(visible, start=start, group=GROUP, dtype=key.dtype, device=CPU)
        segments.append(Segment(slot=slot, start=start, offset=offset, count=count, bias=bias))
        rows = slice(offset, offset + count)
        expected.append(
            reference(
                query[0, :, rows],
                torch.cat((prefix_keys, key[0, :, rows]), dim=1),
                torch.cat((prefix_values, value[0, :, rows]), dim=1),
                torch.cat((torch.ones(count, start, dtype=torch.bool), visible), dim=1),
            )
        )
        offset += count
    layer = SimpleNamespace(layer_idx=1)
    out, weights = attend(
        layer, query, key, value, None, scaling=SCALE, jetflow=Pass(cache, segments)
    )
    assert weights is None
    assert out.shape == (1, total, HEADS, WIDTH)
    torch.testing.assert_close(out[0], torch.cat(expected), rtol=0, atol=1e-12)


def test_views_into_a_fused_projection_are_read_with_their_strides() -> None:
    torch.manual_seed(0)
    fused = torch.randn(1, 5, HEADS + 2 * KV_HEADS, WIDTH, dtype=torch.float64)
    parts = fused.split((HEADS, KV_HEADS, KV_HEADS), dim=2)
    views = [part.transpose(1, 2) for part in parts]
    layer = SimpleNamespace(layer_idx=0)
    bias = visibility_bias(
        torch.ones(5, 5, dtype=torch.bool).tril(),
        start=0,
        group=GROUP,
        dtype=torch.float64,
        device=CPU,
    )
    segments = [Segment(slot=0, start=0, offset=0, count=5, bias=bias)]
    of_views, of_copies = (
        attend(layer, *tensors, None, scaling=SCALE, jetflow=Pass(poisoned_cache(1, 5), segments))[
            0
        ]
        for tensors in (views, [view.contiguous() for view in views])
    )
    assert torch.equal(of_views, of_copies)
    assert of_views.isfinite().all()


def test_a_bias_hides_what_is_not_visible_for_every_head_of_the_group() -> None:
    visible = torch.tensor([[True, False], [True, True]])
    bias = visibility_bias(visible, start=3, group=2, dtype=torch.float32, device=CPU)
    rows = [[0.0, 0.0, 0.0, 0.0, -math.inf], [0.0] * 5]
    assert bias is not None
    assert torch.equal(bias, torch.tensor(rows * 2))
    assert bias.stride(0) % 16 == 0


def test_a_root_alone_needs_no_mask() -> None:
    visible = torch.ones(1, 1, dtype=torch.bool)
    assert visibility_bias(visible, start=9, group=2, dtype=torch.float32, device=CPU) is None


def test_the_model_is_refused_outside_a_session() -> None:
    rows = torch.zeros(1, HEADS, 1, WIDTH)
    with pytest.raises(RuntimeError, match="through a session"):
        attend(SimpleNamespace(layer_idx=0), rows, rows, rows, None, scaling=1.0)
