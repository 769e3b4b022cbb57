"""Interpreted, or on a CUDA device: the fused cache write equals the plain operations."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from jetflow_kernels.round import norm_rope_kv_write, norm_rope_kv_write_reference
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device", "rounding_as_on_a_device")

BITS = {2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class Layer:
    """Arguments of one call."""

    qkv: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor
    slots: Tensor
    k_pool: Tensor
    v_pool: Tensor
    q_weight: Tensor | None
    k_weight: Tensor | None

    @property
    def arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def a_layer(
    heads: tuple[int, int], dim: int, dtype: torch.dtype, *, packed: bool, norm: bool
) -> Layer:
    """Five rows on scattered slots, two of them not to be written, in tensors with gaps."""
    generator, device = torch.Generator().manual_seed(dim + heads[0]), torch.get_default_device()
    q_heads, kv_heads = heads
    page, pages, rows = 4, 6, 5

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cpu").to(device, dtype)

    wide = noise(rows, (q_heads + 2 * kv_heads) * dim + 48)
    if packed:
        pool = noise(pages, kv_heads, page, 2 * dim).transpose(1, 2)
        k_pool, v_pool = pool[..., :dim], pool[..., dim:]
    else:
        k_pool = noise(pages, page, kv_heads, dim)
        v_pool = noise(pages, page, kv_heads + 1, dim)[:, :, 1:]
    angles = torch.rand(50, dim // 2, generator=generator, device="cpu").to(device) * 60
    table = torch.cat((angles.cos(), angles.sin()), dim=1)
    return Layer(
        wide[:, 16 : 16 + (q_heads + 2 * kv_heads) * dim],
        torch.tensor([0, 7, 49, 7, 8], dtype=torch.int32),
        table[:, : dim // 2],
        table[:, dim // 2 :],
        torch.tensor([23, -1, 0, pages * page, 9]),
        k_pool,
        v_pool,
        noise(dim) + 1 if norm else None,
        noise(dim) + 1 if norm else None,
    )


def assert_alike(found: Tensor, wanted: Tensor, *, exact: bool) -> None:
    """Bits where nothing is added up in another order, one rounding of the type elsewhere."""
    if exact:
        kind = BITS[found.element_size()]
        assert torch.equal(found.contiguous().view(kind), wanted.contiguous().view(kind))
        return
    step = torch.finfo(found.dtype).eps
    largest = float(wanted.float().abs().max())
    torch.testing.assert_close(found, wanted, rtol=2 * step, atol=step * largest)


@pytest.mark.parametrize(
    ("heads", "dim", "dtype", "packed", "norm"),
    [
        ((4, 2), 64, torch.float32, False, True),
        ((9, 3), 64, torch.bfloat16, True, True),
        ((9, 3), 64, torch.bfloat16, False, False),
        ((3, 1), 128, torch.float16, True, False),
        ((3, 1), 128, torch.float32, True, False),
        ((32, 8), 128, torch.bfloat16, False, True),
        ((2, 2), 96, torch.float16, True, True),
        ((2, 1), 256, torch.float32, False, True),
        ((1, 1), 16, torch.float32, True, True),
    ],
)
def test_layers(
    heads: tuple[int, int], dim: int, dtype: torch.dtype, packed: bool, norm: bool
) -> None:
    found, wanted, before = (a_layer(heads, dim, dtype, packed=packed, norm=norm) for _ in "abc")
    q = norm_rope_kv_write(**found.arguments)
    assert_alike(q, norm_rope_kv_write_reference(**wanted.arguments), exact=not norm)
    assert torch.equal(found.qkv, before.qkv)
    written = torch.zeros(6 * 4, dtype=torch.bool)
    written[[23, 0, 9]] = True
    for name in ("k_pool", "v_pool"):
        pools = (getattr(layer, name).flatten(0, 1) for layer in (found, wanted, before))
        new, other, old = pools
        assert_alike(new[written], other[written], exact=not norm or name == "v_pool")
        assert_alike(new[~written], old[~written], exact=True)
        assert not torch.equal(new[written], old[written])
    # What lies between the heads of a view stays too.
    for name in ("k_pool", "v_pool"):
        new, old = (getattr(layer, name) for layer in (found, before))
        base = new._base
        if base is not None and not packed:
            assert_alike(base[:, :, 0], old._base[:, :, 0], exact=True)


def test_queries_may_stay_where_they_are() -> None:
    found, wanted = (a_layer((4, 2), 64, torch.float32, packed=False, norm=True) for _ in "ab")
    apart = norm_rope_kv_write(**wanted.arguments)
    place = found.qkv[:, : 4 * 64].unflatten(1, (4, 64))
    assert norm_rope_kv_write(**found.arguments, out=place) is place
    assert torch.equal(place, apart)
    assert torch.equal(found.k_pool, wanted.k_pool)
    assert torch.equal(found.qkv[:, 4 * 64 :], wanted.qkv[:, 4 * 64 :])


def test_queries_may_go_to_a_view_with_gaps() -> None:
    found, wanted = (a_layer((4, 2), 64, torch.float16, packed=True, norm=True) for _ in "ab")
    wide = torch.zeros(4, 5, 80, dtype=torch.float16)
    out = wide[..., 8:72].transpose(0, 1)
    norm_rope_kv_write(**found.arguments, out=out)
    assert torch.equal(out, norm_rope_kv_write(**wanted.arguments))
    assert wide[..., :8].eq(0).all() and wide[..., 72:].eq(0).all()


def test_a_row_alone_equals_itself_among_others() -> None:
    together, alone = (a_layer((9, 3), 64, torch.bfloat16, packed=True, norm=True) for _ in "ab")
    q = norm_rope_kv_write(**together.arguments)
    rows = {name: getattr(alone, name)[4:] for name in ("qkv", "positions", "slots")}
    assert torch.equal(norm_rope_kv_write(**{**alone.arguments, **rows})[0], q[4])
    for name in ("k_pool", "v_pool"):
        new, one = (getattr(layer, name).flatten(0, 1)[9] for layer in (together, alone))
        assert torch.equal(new, one)


def test_a_position_outside_the_table_shows_in_its_row_alone() -> None:
    layer, sound = (a_layer((4, 2), 64, torch.float32, packed=False, norm=True) for _ in "ab")
    wanted = norm_rope_kv_write(**sound.arguments)
    for wrong in (-1, 50, 2**40):
        positions = layer.positions.long()
        positions[1] = wrong
        q = norm_rope_kv_write(**{**layer.arguments, "positions": positions})
        assert q[1].isnan().all()
        assert torch.equal(q[[0, 2, 3, 4]], wanted[[0, 2, 3, 4]])
    # Its slot is -1, so nothing of it reaches the cache.
    assert torch.equal(layer.k_pool, sound.k_pool)


def test_a_pool_past_two_billion_elements() -> None:
    page, dim = 256, 16
    pages = 2**31 // (page * dim) + 2
    # Never filled: only the pages of memory that are written come to exist.
    k_pool, v_pool = torch.empty(2, pages, page, 1, dim, dtype=torch.float16)
    qkv = torch.randn(2, 3 * dim).half()
    slots = torch.tensor([pages * page - 1, 5])
    ones, zeros = torch.ones(4, dim // 2), torch.zeros(4, dim // 2)
    positions = torch.tensor([3, 1])
    q = norm_rope_kv_write(qkv, positions, ones, zeros, slots, k_pool, v_pool)
    assert torch.equal(q.flatten(1), qkv[:, :dim])
    assert torch.equal(k_pool[[-1, 0], [-1, 5], 0], qkv[:, dim : 2 * dim])
    assert torch.equal(v_pool[[-1, 0], [-1, 5], 0], qkv[:, 2 * dim :])


def test_the_op_declares_what_it_writes() -> None:
    layer = a_layer((4, 2), 64, torch.float32, packed=False, norm=True)
    out = norm_rope_kv_write_reference(**layer.arguments)
    results = torch.library.opcheck(
        torch.ops.jetflow_kernels.norm_rope_kv_write.default,
        (*(t.clone() for t in layer.arguments.values()), 1e-6, out),
        test_utils=("test_schema", "test_faketensor"),
    )
    assert set(results.values()) == {"SUCCESS"}
