"""How products are cut for the kernel in CUDA C++, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from jetflow_kernels.ops import linear
from jetflow_kernels.ops.streamed import launch
from jetflow_kernels.ops.streamed.launch import matrix_boxes, params_of, refused, rows_boxes
from jetflow_kernels.ops.streamed.variants import (
    TILE_ROWS,
    VARIANTS,
    Streamed,
    programs_for,
    streamed_for,
    variant_of,
)
from torch import Tensor

HALF = torch.bfloat16


def test_the_smallest_tile_that_holds_the_rows() -> None:
    for rows in range(1, 129):
        found = streamed_for(rows, HALF)
        tile = min(each for each in TILE_ROWS if each >= rows)
        assert found and {each.rows for each in found} == {tile}
        assert all(variant_of(each, HALF, gated=True) in VARIANTS for each in found)
        assert len({str(each) for each in found}) == len(found)
    assert streamed_for(129, HALF) == streamed_for(8, torch.float32) == ()


@pytest.mark.parametrize("tiles", [1, 64, 132, 133, 384, 2374])
def test_programs_have_equally_many_tiles_or_one_more(tiles: int) -> None:
    alone = Streamed(rows=16, columns=64, shares=1)
    programs = programs_for(alone, tiles)
    assert programs <= 132
    each = [len(range(first, tiles, programs)) for first in range(programs)]
    assert max(each) == -(-tiles // 132) and max(each) - min(each) <= 1
    shared = Streamed(rows=16, columns=64, shares=4)
    assert programs_for(shared, tiles) == 4 * tiles


def test_a_tile_of_gates_and_values_is_one_box() -> None:
    weight = torch.arange(2 * 48 * 64).view(96, 64).to(HALF)
    boxes = matrix_boxes(weight, Streamed(rows=16, columns=64, shares=1), gated=True)
    assert (boxes.sizes, boxes.box) == ((64, 8, 2, 6), (64, 8, 2, 4))
    # The rows that the first box brings, in the order in which they lie behind one another.
    _, row, half, block = (2, *boxes.strides)
    order = [(b * block + h * half + r * row) // 128 for b in range(4) for h in range(2)
             for r in range(8)]  # fmt: skip
    wanted = [8 * b + 48 * h + r for b in range(4) for h in range(2) for r in range(8)]
    assert order == wanted


class _Given:
    """A tensor of a card, as far as ``refused`` looks at it."""

    def __init__(self, rows: int, columns: int, *, at: int = 0, stride: int | None = None) -> None:
        self.shape, self.dtype, self.device, self.is_cuda = (rows, columns), HALF, "cuda:0", True
        self._at, self._stride = 1024 + at, stride or columns

    def __len__(self) -> int:
        return self.shape[0]

    def stride(self, axis: int) -> int:
        return (self._stride, 1)[axis]

    def data_ptr(self) -> int:
        return self._at


CONFIG = Streamed(rows=16, columns=64, shares=2)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("x", {"rows": 17, "columns": 128}, "must be in 0..16"),
    ("x", {"rows": 8, "columns": 64}, "need at least 65 columns of x"),
    ("x", {"rows": 8, "columns": 128, "at": 8}, "x must lie at multiples of 16 bytes"),
    ("x", {"rows": 8, "columns": 128, "stride": 132}, "x must lie at multiples of 16 bytes"),
    ("weight", {"rows": 64, "columns": 128, "at": 2}, "weight must lie at multiples of 16"),
    ("out", {"rows": 8, "columns": 33}, "columns in groups of 2"),
    ("out", {"rows": 8, "columns": 32, "at": 2}, "columns in groups of 2"),
]


@pytest.mark.parametrize(("which", "change", "why"), REFUSED)
def test_what_is_refused_is_named(
    monkeypatch: pytest.MonkeyPatch, which: str, change: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    given: dict[str, Any] = {
        "x": _Given(8, 128), "weight": _Given(64, 128), "out": _Given(8, 64),
    }  # fmt: skip
    assert refused(**given, config=CONFIG, gated=False) is None
    sizes = dict(change)
    given[which] = _Given(sizes.pop("rows"), sizes.pop("columns"), **sizes)
    assert why in str(refused(**given, config=CONFIG, gated=False))


def test_gates_come_in_eights_and_other_cards_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = {"x": _Given(8, 128), "weight": _Given(24, 128), "out": _Given(8, 12)}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert "multiple of 8, got 12" in str(refused(**given, config=CONFIG, gated=True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    assert "capability 9.x" in str(refused(**given, config=CONFIG, gated=False))


def test_on_a_cpu_they_are_refused_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "cubin", lambda variant: pytest.fail("built"))
    x, weight = torch.zeros(3, 128, dtype=HALF), torch.zeros(64, 128, dtype=HALF)
    with pytest.raises(ValueError, match=r"need a CUDA device of capability 9\.x, x is on cpu"):
        linear(x, weight, config=CONFIG)


def test_what_the_kernel_is_told() -> None:
    x, out = torch.zeros(5, 200, dtype=HALF), torch.zeros(5, 300, dtype=HALF)[:, :100]
    bias: Tensor = torch.zeros(100, dtype=HALF)
    told = params_of(x, bias, out, Streamed(rows=16, columns=64, shares=4), gated=False)
    assert (told.out, told.bias) == (out.data_ptr(), bias.data_ptr())
    assert (told.out_row, told.rows, told.columns) == (300, 5, 100)
    assert (told.tiles, told.steps, told.share_log) == (2, 4, 2)
    assert params_of(x, None, out, CONFIG, gated=True).tiles == 4
    boxes = rows_boxes(x[:1], CONFIG)
    assert (boxes.sizes, boxes.box) == ((200, 1, 1, 1), (64, 16, 1, 1))
