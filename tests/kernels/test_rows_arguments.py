"""Row attention refuses by name what it cannot do; its reference is torch's own attention."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_kernels.rows import attend_rows, op, row_attention, row_attention_reference
from torch import Tensor
from torch.nn import functional as F

Change = Callable[[dict[str, Tensor]], dict[str, Any]]


def _rows(dtype: torch.dtype = torch.float16, dim: int = 64, group: int = 2) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {
        "queries": torch.randn(3, 2 * group, dim, dtype=dtype),
        "keys": torch.randn(3, 20, 2, dim, dtype=dtype),
        "values": torch.randn(3, 20, 2, dim, dtype=dtype),
        "lengths": torch.tensor([1, 7, 20], dtype=torch.int32),
    }


WRONG: list[tuple[str, dict[str, Any], Change, str]] = [
    ("type", {"dtype": torch.float64}, lambda a: {}, "queries must be one of .* got .*float64"),
    ("dim", {"dim": 60}, lambda a: {}, "head dim of queries must be a multiple of 8, got 60"),
    ("large", {"dim": 264}, lambda a: {}, r"head dim of queries must be in 1\.\.256, got 264"),
    ("group", {"group": 33}, lambda a: {}, r"query heads of a key head must be in 1\.\.32, got 33"),
    ("heads", {}, lambda a: {"queries": a["queries"][:, 1:]}, "query heads 3 are no multiple"),
    ("no heads", {}, lambda a: {"queries": a["queries"][:, :0]}, "query heads 0 are no multiple"),
    ("rank", {}, lambda a: {"queries": a["queries"][0]}, r"queries must have shape \[any, any"),
    ("rows", {}, lambda a: {"keys": a["keys"][1:]}, r"keys must have shape \[3, any, any, 64\]"),
    ("values", {}, lambda a: {"values": a["values"][:, 1:]}, r"values .* \[3, 20, 2, 64\], got"),
    ("mixed", {}, lambda a: {"values": a["values"].float()}, "values must be torch.float16, got"),
    ("long", {}, lambda a: {"lengths": a["lengths"].long()}, "lengths must be torch.int32, got"),
    ("short", {}, lambda a: {"lengths": a["lengths"][1:]}, r"lengths must have shape \[3\]"),
    ("device", {}, lambda a: {"keys": a["keys"].to("meta")}, "keys must be on cpu .* got meta"),
    ("out", {}, lambda a: {"out": a["queries"][1:].clone()}, r"out must have shape \[3, 4, 64\]"),
    ("scale", {}, lambda a: {"scale": float("nan")}, "scale must be finite, got nan"),
]


@pytest.mark.parametrize(("shape", "change", "message"), [w[1:] for w in WRONG])
def test_wrong_arguments_are_named(shape: dict[str, Any], change: Change, message: str) -> None:
    arguments = _rows(**shape)
    out = torch.full_like(arguments["queries"], 7.0)
    with pytest.raises(ValueError, match=message):
        row_attention(**{**arguments, "out": out, **change(arguments)})
    assert torch.equal(out, torch.full_like(out, 7.0))


def test_tensors_on_the_cpu_are_refused_and_the_reference_named() -> None:
    with pytest.raises(RuntimeError, match=r"runs on CUDA devices.* row_attention_reference"):
        row_attention(**_rows())
    with pytest.raises(RuntimeError, match=r"runs on CUDA devices"):
        attend_rows(*_rows().values(), 20)


def test_a_missing_triton_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(op.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="needs triton, which is not installed here"):
        row_attention(**_rows())


def test_fake_tensors_get_the_shape_and_type_of_the_queries() -> None:
    got = row_attention(**{name: tensor.to("meta") for name, tensor in _rows().items()})
    assert (got.device.type, got.shape, got.dtype) == ("meta", (3, 4, 64), torch.float16)


def test_only_the_kernel_file_needs_triton_to_be_imported() -> None:
    files = sorted(Path(op.__file__).parent.glob("*.py"))
    need = [
        file.stem
        for file in files
        if re.search(r"^(import|from) (triton|\S*_kernel)\b", file.read_text("utf-8"), re.MULTILINE)
    ]
    assert need == ["attention_kernel"]
    assert len(files) > 5


@pytest.mark.parametrize("scale", [None, -0.4])
@pytest.mark.parametrize("group", [1, 3])
def test_the_reference_is_torchs_attention(group: int, scale: float | None) -> None:
    arguments = _rows(torch.float64, dim=24, group=group)
    queries, keys, values, lengths = arguments.values()
    seen = (torch.arange(20) < lengths[:, None])[:, None, None]
    want = F.scaled_dot_product_attention(
        queries[:, :, None], keys.transpose(1, 2), values.transpose(1, 2), seen,
        scale=scale, enable_gqa=True,
    )[:, :, 0]  # fmt: skip
    for row, length in enumerate(lengths.tolist()):
        keys[row, length:], values[row, length:] = torch.nan, torch.nan
    out = torch.full_like(queries, torch.nan)
    assert row_attention_reference(**arguments, scale=scale, out=out) is out
    torch.testing.assert_close(out, want)


def test_the_reference_looks_at_lengths() -> None:
    arguments = _rows()
    arguments["lengths"][1] = 0
    got = row_attention_reference(**arguments)
    assert not got[1].any()
    assert got[0].any()
    for wrong in (-1, 21):
        arguments["lengths"][1] = wrong
        with pytest.raises(ValueError, match=rf"lengths\[1\] must be in 0\.\.20, got {wrong}"):
            row_attention_reference(**arguments)
