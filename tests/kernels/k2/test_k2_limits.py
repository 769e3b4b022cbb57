"""What the CUDA version does not take is said with the reason, and never runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention, tree_attention_backend
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import backend, plan
from jetflow_kernels.attention.k2.configurations import CONFIGURATIONS, SWIFT_CONFIGURATIONS
from jetflow_kernels.attention.k2.limits import supports, unavailable
from jetflow_kernels.attention.k2.parameters import Params

SHAPE: dict[str, Any] = {"dim": 64, "dtype": torch.float16}
REFUSED: list[tuple[dict[str, Any], Callable[[Any], dict[str, Any]], str]] = [
    ({"dtype": torch.float32}, lambda b: {}, "q is torch.float32; it takes float16"),
    ({"dim": 256}, lambda b: {}, "the head dim is 256; it takes 64 and 128"),
    ({"page": 20}, lambda b: {}, "a page has 20 rows; it takes multiples of 8"),
    (
        {},
        lambda b: {"q": b.q.transpose(1, 2).contiguous().transpose(1, 2)},
        "q has a last stride of 4; it takes 1",
    ),
    (
        {},
        lambda b: {"v_pool": torch.cat([b.v_pool, b.v_pool], -1)[..., 1:65]},
        "v_pool begins at an address",
    ),
    (
        {},
        lambda b: {"k_pool": torch.cat([b.k_pool, b.k_pool], -1)[..., :65][..., :64].clone()},
        "",
    ),
    (
        {},
        lambda b: {"k_pool": torch.nn.functional.pad(b.k_pool, (0, 4))[..., :64]},
        r"k_pool has a stride of 136 bytes on axis 2",
    ),
    (
        {},
        lambda b: {"page_table": b.page_table[:, :1].expand(-1, (1 << 20) + 1)},
        "a request can have 16777232 positions; it takes up to 16777216",
    ),
    (
        {},
        lambda b: {"k_pool": b.k_pool[:1].expand(b.k_pool.shape)},
        "k_pool has a stride of 0 bytes on axis 0",
    ),
]


@pytest.mark.parametrize(("shape", "change", "reason"), REFUSED)
def test_reasons(
    make_batch: Callable[..., Any],
    shape: dict[str, Any],
    change: Callable[[Any], dict[str, Any]],
    reason: str,
) -> None:
    batch = make_batch((5, 2), (9, 0), **{**SHAPE, **shape})
    found = supports(TreeAttentionArguments(**{**batch.arguments, **change(batch)}))
    assert (found is None) if not reason else (found is not None and found.startswith(reason))


def test_everything_served_is_taken(make_batch: Callable[..., Any]) -> None:
    for dtype, dim, page in (
        (torch.bfloat16, 128, 16), (torch.float16, 64, 256), (torch.float16, 128, 24),
    ):  # fmt: skip
        batch = make_batch((5, 2), (9, 0), dim=dim, dtype=dtype, page=page)
        both = torch.cat([batch.k_pool, batch.v_pool], dim=-1).transpose(1, 2).contiguous()
        k_pool, v_pool = (half.transpose(1, 2) for half in both.split(dim, dim=-1))
        fused = torch.cat([batch.q, batch.q], dim=-1)[..., :dim]
        packed = {"q": fused, "k_pool": k_pool, "v_pool": v_pool}
        assert supports(TreeAttentionArguments(**batch.arguments), out=batch.q) is None
        assert supports(TreeAttentionArguments(**{**batch.arguments, **packed})) is None


def test_named_backends_are_honoured_or_refused(make_batch: Callable[..., Any]) -> None:
    batch = make_batch((5,), (9,), **SHAPE)
    assert tree_attention_backend(**batch.arguments) == "triton"
    assert tree_attention_backend(**batch.arguments, backend="triton") == "triton"
    with pytest.raises(ValueError, match="backend must be one of auto, triton, cuda, flash, got"):
        tree_attention(**batch.arguments, backend="cute")  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="backend 'cuda' cannot run here: tensors are on cpu"):
        tree_attention_backend(**batch.arguments, backend="cuda")
    wide = make_batch((5,), (9,), dim=256, dtype=torch.float16)
    with pytest.raises(ValueError, match="does not take these arguments: the head dim is 256"):
        tree_attention_backend(**wide.arguments, backend="cuda")


def test_auto_follows_the_plan(
    make_batch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch((5,), (9,), **SHAPE)
    monkeypatch.setattr(backend, "unavailable", lambda device, variant: None)
    assert tree_attention_backend(**batch.arguments) == "cuda"
    wide = make_batch((5,), (9,), dim=256, dtype=torch.float16)
    assert tree_attention_backend(**wide.arguments) == "triton"
    single = make_batch((5,), (9,), dim=64, dtype=torch.float32)
    assert tree_attention_backend(**single.arguments) == "triton"
    monkeypatch.setattr(backend, "unavailable", lambda device, variant: "no compiler")
    assert tree_attention_backend(**batch.arguments) == "triton"


def test_other_devices_are_named() -> None:
    assert unavailable(torch.device("cpu")) == "tensors are on cpu; it runs on CUDA devices"


@pytest.mark.slow
def test_both_sides_hold_the_same_numbers(compiled: Callable[..., ctypes.CDLL]) -> None:
    variants = (*CONFIGURATIONS, *SWIFT_CONFIGURATIONS)
    emulator = compiled(variants)
    for index, variant in enumerate(variants):
        found = (ctypes.c_int * 5)()
        emulator.emulated_sizes(index, found)
        want = (variant.columns, variant.programs, variant.stages, variant.threads)
        assert (*want, variant.shared_bytes) == tuple(found)
        assert plan.tiles_for(1, 1, 1, variant.dim, variant.dtype).rows in (64, 128)
    assert emulator.emulated_params_size() == ctypes.sizeof(Params)
