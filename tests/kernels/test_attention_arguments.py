"""What the Triton version cannot do is refused by name, before anything is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention, tree_attention_backend
from jetflow_kernels.attention import launch, op, plan
from jetflow_kernels.attention.k2 import launch as k2_launch

WRONG: list[tuple[str, dict[str, Any], Callable[[Any], dict[str, Any]], str]] = [
    ("type", {"dtype": torch.float64}, lambda b: {}, "dtype of q must be one of .* got .*float64"),
    ("dim", {"dim": 80}, lambda b: {}, "head dim of q must be one of 64, 128, 256, got 80"),
    ("page", {"page": 8}, lambda b: {}, r"rows of a page of k_pool must be 16\.\.256, got 8"),
    ("words", {}, lambda b: {"ancestors": b.ancestors.repeat(1, 5)}, r"words .* 1\.\.4, got 5"),
    ("layout", {}, lambda b: {"v_pool": b.v_pool[1:]}, "v_pool has .* is needed"),
    ("out", {}, lambda b: {"out": b.q[1:].clone()}, r"out must have shape \(10, 4, 64\)"),
    ("lse", {}, lambda b: {"lse": b.q[..., 0].half()}, "lse must be torch.float32"),
    ("scale", {}, lambda b: {"scale": float("inf")}, "scale must be finite, got inf"),
    ("cut", {}, lambda b: {"cut": "fast"}, "cut must be one of by_shapes, by_request, got 'fast'"),
]


@pytest.mark.parametrize(("shape", "change", "message"), [w[1:] for w in WRONG])
def test_wrong_arguments_are_named(
    make_batch: Callable[..., Any],
    shape: dict[str, Any],
    change: Callable[[Any], dict[str, Any]],
    message: str,
) -> None:
    batch = make_batch((5, 2), (9, 0), **{"dim": 64, "dtype": torch.float16, **shape})
    out = torch.full_like(batch.q, 7.0)
    with pytest.raises(ValueError, match=message):
        tree_attention(**{**batch.arguments, "out": out, **change(batch)})
    assert torch.equal(out, torch.full_like(out, 7.0))


def test_tensors_on_the_cpu_are_refused_and_the_reference_named(
    make_batch: Callable[..., Any],
) -> None:
    batch = make_batch((5,), (9,), dim=64, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"runs on CUDA devices.* tree_attention_reference"):
        tree_attention(**batch.arguments)


def test_a_missing_triton_is_named(
    make_batch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(op.util, "find_spec", lambda name: None)
    batch = make_batch((5,), (9,), dim=64, dtype=torch.float16)
    with pytest.raises(RuntimeError, match="needs triton, which is not installed here"):
        tree_attention(**batch.arguments)


@pytest.mark.parametrize("version", ["triton", "cuda"])
def test_cut_by_request_nothing_of_the_batch_chooses_tiles_or_clusters(
    make_batch: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(launch, "INTERPRETED", True)
    monkeypatch.setattr(op, "choose", lambda *given, **named: version)
    for module in (launch, k2_launch):
        monkeypatch.setattr(module, "launch", lambda arguments, **named: seen.append(named))
    for nodes in ((1,), (40,), (5, 2, 130)):
        batch = make_batch(nodes, [9] * len(nodes), dim=128, dtype=torch.float16, padding=0)
        for cut in plan.CUTS:
            tree_attention(**batch.arguments, cut=cut)
    large = plan.tiles_of_all(128, torch.float16)
    assert [each["tiles"] for each in seen[1::2]] == [large] * 3
    assert [each["tiles"].rows for each in seen[::2]] == [64, 128, 128]
    if version == "cuda":
        assert [each["cluster"] for each in seen] == [None, plan.BY_LENGTH] * 3


def test_a_wrong_cut_is_named_by_who_tells_the_version(make_batch: Callable[..., Any]) -> None:
    batch = make_batch((5,), (9,), dim=64, dtype=torch.float16)
    with pytest.raises(ValueError, match="cut must be one of"):
        tree_attention_backend(**batch.arguments, cut="fast")  # type: ignore[arg-type]


def test_fake_tensors_get_the_shape_and_type_of_q(make_batch: Callable[..., Any]) -> None:
    batch = make_batch((5,), (9,), dim=64, dtype=torch.float16)
    meta = {name: tensor.to("meta") for name, tensor in batch.arguments.items()}
    got = tree_attention(**meta)
    assert (got.device.type, got.shape, got.dtype) == ("meta", batch.q.shape, torch.float16)
