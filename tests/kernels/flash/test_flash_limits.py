"""What flash-attn does not take, and what is missing where it cannot run, is said by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

import pytest
import torch
from jetflow_kernels import backends, tree_attention, tree_attention_backend
from jetflow_kernels.attention.flash import library, limits

SHAPE: dict[str, Any] = {"dim": 64, "dtype": torch.float16}
Change = Callable[[Any], dict[str, Any]]
REFUSED: list[tuple[dict[str, Any], Change, str]] = [
    ({"dtype": torch.float32}, lambda b: {}, "q is torch.float32; it takes float16 and bfloat16"),
    ({"dim": 256}, lambda b: {}, "the head dim is 256; it takes 64 and 128"),
    ({}, lambda b: {"cut": "by_request"}, "cut is by_request; flash-attn cuts as it likes"),
    (
        {},
        lambda b: {"v_pool": torch.nn.functional.pad(b.v_pool, (0, 4))[..., :64]},
        "v_pool has a stride of 136 bytes on axis 2; 16 must divide it",
    ),
    (
        {},
        lambda b: {"k_pool": b.k_pool.transpose(2, 3).contiguous().transpose(2, 3)},
        "k_pool has a last stride of 2; it takes 1",
    ),
    ({}, lambda b: {"k_pool": b.k_pool[:0], "v_pool": b.v_pool[:0]}, "the pools have no pages"),
]


@pytest.mark.parametrize(("shape", "change", "reason"), REFUSED)
def test_reasons(
    make_batch: Callable[..., Any], flash: Any, shape: dict[str, Any], change: Change, reason: str
) -> None:
    batch = make_batch((5, 2), (9, 0), **{**SHAPE, **shape})
    out = torch.full_like(batch.q, 7.0)
    with pytest.raises(ValueError, match=f"'flash' does not take these arguments: {reason}"):
        tree_attention(**{**batch.arguments, "out": out, **change(batch)}, backend="flash")
    assert torch.equal(out, torch.full_like(out, 7.0)) and not flash.calls


@pytest.mark.parametrize("scale", [0.0, -0.5])
def test_scales_that_it_would_get_wrong(
    make_batch: Callable[..., Any], flash: Any, scale: float
) -> None:
    batch = make_batch((5,), (9,), **SHAPE)
    with pytest.raises(ValueError, match=f"'flash' takes scales above 0, got {scale}"):
        tree_attention(**batch.arguments, scale=scale, backend="flash")
    assert not flash.calls


def test_it_is_never_chosen_by_itself(make_batch: Callable[..., Any], flash: Any) -> None:
    batch = make_batch((5,), (9,), **SHAPE)
    assert tree_attention_backend(**batch.arguments) == "triton"
    assert tree_attention_backend(**batch.arguments, backend="flash") == "flash"


def test_what_is_missing_is_named(
    make_batch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch((5,), (9,), **SHAPE)
    with pytest.raises(RuntimeError, match="'flash' cannot run here: tensors are on cpu"):
        tree_attention(**batch.arguments, backend="flash")
    card = torch.device("cuda", 0)
    limits._missing.cache_clear()
    monkeypatch.setattr(limits, "_capability", lambda index: (12, 0))
    assert limits.unavailable(card) == (
        "the device has capability 12.0; paged keys need 9.x, 10.x, 11.x"
    )
    monkeypatch.setattr(limits, "_capability", lambda index: (10, 0))
    monkeypatch.setattr(metadata, "version", lambda name: "4" if "cutlass" in name else _gone())
    assert limits.unavailable(card) == (
        "flash-attn-4, quack-kernels, apache-tvm-ffi not installed "
        "(pip install 'jetflow-kernels[flash]')"
    )
    assert backends()[-1].detail == library.missing()
    monkeypatch.setattr(metadata, "version", lambda name: "4.0.0b36")
    limits._missing.cache_clear()
    assert limits.unavailable(card) is None
    limits._missing.cache_clear()


def _gone() -> str:
    raise metadata.PackageNotFoundError


def test_another_interface_is_named(place: Callable[..., None]) -> None:
    def attend(q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, causal: bool) -> None:
        raise AssertionError

    place(attend)
    with pytest.raises(library.FlashError, match="has no aux_tensors, mask_mod, max_seqlen_q"):
        library.load()


def test_a_broken_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    library.load.cache_clear()
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    with pytest.raises(library.FlashError, match=r"flash-attn-4 .* cannot be imported: "):
        library.load()


def test_fake_tensors_need_no_flash_attn(make_batch: Callable[..., Any]) -> None:
    batch = make_batch((5,), (9,), **SHAPE)
    meta = {name: tensor.to("meta") for name, tensor in batch.arguments.items()}
    assert tree_attention(**meta, backend="flash").shape == batch.q.shape
