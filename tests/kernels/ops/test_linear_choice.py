"""What is chosen for a product, how it is kept, and what the products refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_kernels.ops import (
    LayerSteps,
    Products,
    gate_up_silu,
    gate_up_silu_reference,
    linear,
    linear_choice,
    linear_reference,
    linear_store,
)
from jetflow_kernels.ops.linear_choice import Choice, Product
from jetflow_kernels.ops.linear_measure import TORCH, Timed, apart, uncached
from jetflow_kernels.ops.linear_plan import (
    Few,
    Shares,
    configs_for,
    programs_in,
    rows_of_tile,
    tiles_in,
)
from torch import Tensor

HALF = torch.bfloat16
KEY = {"device": "a card", "dtype": "bfloat16"}


@pytest.mark.parametrize("rows", [1, 4, 5, 16, 17, 64, 100, 256])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_configurations_fit_the_rows(rows: int, dtype: torch.dtype) -> None:
    for gated in (False, True):
        found = configs_for(rows, dtype, gated=gated)
        assert len({str(each) for each in found}) == len(found) >= 1
        assert any(isinstance(each, Few) for each in found) == (rows <= 4)
        for each in found:
            if isinstance(each, Shares) and dtype == HALF:
                assert each.rows in (rows_of_tile(rows), rows_of_tile(rows) // 2)
            if isinstance(each, Shares):
                programs = programs_in(each, rows, 151_936, 4096)
                assert programs == (each.programs or tiles_in(each, rows, 151_936))
    assert programs_in(Shares(
        columns=64, rows=16, depth=32, stages=2, warps=4, programs=0
    ), 256, 300_000, 16_384) * tiles_in(each, 1, 1) < 2**31  # fmt: skip


@pytest.mark.parametrize("rows", [0, 257])
def test_rows_out_of_range(rows: int) -> None:
    with pytest.raises(ValueError, match=rf"rows must be in 1..256, got {rows}"):
        configs_for(rows, HALF, gated=False)


def timed(product: Product, best: str | None) -> Timed:
    """Torch takes 10 microseconds, the best 7 and the others 12; one could not be run."""
    names = list(product.configs(HALF))
    us = {TORCH: 10.0, **{name: 7.0 if name == best else 12.0 for name in names[:-1]}}
    return Timed(us, {names[-1]: "OutOfResources: shared memory"})


def choice_for(product: Product, place: int | None) -> Choice:
    configs = product.configs(HALF)
    best = None if place is None else list(configs)[place]
    return Choice.of(product, configs, timed(product, best))


def test_the_fastest_is_chosen_and_kept(tmp_path: Path) -> None:
    product = Product(64, 4096, 4096, gated=False)
    ours, torchs = choice_for(product, 1), choice_for(product, None)
    assert ours.config == configs_for(64, HALF, gated=False)[1]
    assert (torchs.config, torchs.runs) == (None, TORCH)
    file = linear_store.file_of(KEY, tmp_path / "deeper")
    assert linear_store.stored(file, KEY) == []
    assert linear_store.store(file, KEY, [ours.line(), torchs.line()])
    lines = linear_store.stored(file, KEY)
    assert [Choice.of_line(line, HALF) for line in lines] == [ours, torchs]
    assert [each.name for each in file.parent.iterdir()] == [file.name]
    assert linear_store.file_of({**KEY, "dtype": "float16"}, file.parent) != file
    # Of another key, though it lies in the place of this one.
    assert linear_store.stored(file, {**KEY, "device": "another"}) == []


@pytest.mark.parametrize(
    "broken",
    [
        lambda line: line.pop("us"),
        lambda line: line["us"].pop(TORCH),
        lambda line: line["us"].update({TORCH: 0.0}),
        lambda line: line["us"].update({TORCH: float("nan")}),
        lambda line: line["us"].update({TORCH: 1.0}),
        lambda line: line["us"].update({"tiles of yesterday": 1.0}),
        lambda line: line["refused"].clear(),
        lambda line: line.update(runs="tiles of yesterday"),
        lambda line: line.update(rows=0),
        lambda line: line.update(us=[1.0]),
    ],
)
def test_lines_that_do_not_fit_are_measured_again(broken: Callable[[Any], object]) -> None:
    line = choice_for(Product(64, 4096, 4096, gated=True), 0).line()
    assert Choice.of_line(json.loads(json.dumps(line)), HALF) is not None
    broken(line)
    assert Choice.of_line(line, HALF) is None


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other"}', '{"products": 3}'])
def test_files_that_hold_something_else(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text, encoding="utf-8")
    assert linear_store.stored(file, KEY) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    assert not linear_store.store(tmp_path / "file" / "x.json", KEY, [])


class Measured:
    """Stands in for a device: says what was asked of it, and that the first of ours is best."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[int, int, bool]] = []
        monkeypatch.setattr(linear_choice, "_ours", lambda weight: weight.dtype == HALF)
        monkeypatch.setattr(linear_choice, "measure", self)
        monkeypatch.setattr(linear_choice, "memory_rate", lambda device: 1e12)
        monkeypatch.setattr(linear_store, "key_of", lambda device, dtype: {**KEY, "x": str(dtype)})

    def __call__(
        self, wanted: Any, weights: list[Tensor], *, gated: bool, arrived: Tensor
    ) -> list[Timed]:
        assert arrived.dtype == torch.int32
        assert not arrived.any()
        self.asked += [(rows, len(weights), gated) for rows, _ in wanted]
        shape = weights[0].shape
        return [
            timed(Product(rows, shape[0], shape[1], gated), str(configs[0]))
            for rows, configs in wanted
        ]


def test_products_are_measured_once_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Measured(monkeypatch)
    weights = [torch.zeros(96, 32, dtype=HALF) for _ in range(3)] + [torch.zeros(8, 32, dtype=HALF)]
    products = Products(tmp_path)
    products.prepare([16, 1, 16, 300, 0], weights, weights[:1])
    assert device.asked == [(1, 3, False), (16, 3, False), (1, 1, False), (16, 1, False),
                            (1, 1, True), (16, 1, True)]  # fmt: skip
    products.prepare([1], weights, weights[:1])
    later = Products(tmp_path)
    later.prepare([16], weights)
    assert len(device.asked) == 6
    later.prepare([16, 2], weights[:1])
    assert device.asked[6:] == [(2, 1, False)]
    x = torch.zeros(16, 32, dtype=HALF)
    found = later.choice(x, weights[0], gated=False)
    assert found is not None
    assert found[0] == configs_for(16, HALF, gated=False)[0]
    assert later.choice(x[:3], weights[0], gated=False) is None
    lines = products.table()
    assert len(lines) == 6
    json.dumps(lines)
    assert [line["chosen_us"] for line in lines] == [7.0] * 6
    whole = next(line for line in lines if (line["rows"], line["out"], line["gated"]) == (1, 8, 0))
    assert whole["bytes_per_second"] == pytest.approx((8 * 32 + 32 + 8) * 2 / 7e-6)
    assert whole["share_of_memory_rate"] == pytest.approx(whole["bytes_per_second"] / 1e12)


def test_nothing_is_measured_where_products_are_torchs(tmp_path: Path) -> None:
    steps = LayerSteps(Products(tmp_path))
    steps.prepare([1, 16], [torch.zeros(96, 32, dtype=HALF)], [torch.zeros(8, 32)])
    assert steps.products() == []
    assert list(tmp_path.iterdir()) == []


def test_matrices_that_take_turns() -> None:
    many = [torch.zeros(2**20, 16, dtype=HALF) for _ in range(9)]
    assert [id(each) for each in uncached(many)] == [id(each) for each in many[:8]]
    few = uncached([torch.ones(2**20, 64, dtype=HALF), torch.zeros(2**20, 64, dtype=HALF)])
    assert len(few) == 2
    assert len(uncached([torch.ones(2**20, 64, dtype=HALF)])) == 2
    assert len({each.data_ptr() for each in uncached([torch.ones(2**10, dtype=HALF)])}) == 256


def test_results_that_are_apart() -> None:
    wanted = torch.tensor([[1.0, -2.0, 0.001]], dtype=HALF)
    assert apart(wanted * (1 + 2**-7), wanted, gated=False) is None
    assert "tolerances" in str(apart(wanted * 1.1, wanted, gated=False))
    assert "inf" in str(apart(wanted * torch.nan, wanted, gated=False))


X, WEIGHT = torch.zeros(3, 8), torch.ones(4, 8)
FEW = Few(columns=4, depth=64, warps=4)


@pytest.mark.parametrize("op", [linear, linear_reference, gate_up_silu, gate_up_silu_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X.double()}, r"x must be .* got torch.float64"),
        ({"x": X[0]}, r"x must have shape \[any, any\], got \[8\]"),
        ({"x": torch.zeros(257, 8)}, r"the rows T of x must be in 0..256, got 257"),
        ({"x": X[:, :0]}, r"x must have at least 1 column, got 0"),
        ({"x": torch.zeros(8, 3).T}, r"x must have no gaps in a row, got strides \(1, 3\)"),
        ({"weight": WEIGHT[:, :7]}, r"weight must have shape \[any, 8\], got \[4, 7\]"),
        ({"weight": WEIGHT.half()}, r"weight must be torch.float32, got torch.float16"),
        ({"weight": torch.ones(8, 8)[::2]}, r"weight must be contiguous"),
        ({"weight": WEIGHT[:0]}, r"weight must have .*at least \d.*, got 0"),
        ({"out": X[:2]}, r"out must have shape \[3, [24]\], got \[2, 8\]"),
        ({"x": torch.zeros(5, 8), "config": FEW}, r"threads alone must be in 0..4, got 5"),
        ({"arrived": torch.zeros(4)}, r"arrived must be torch.int32, got torch.float32"),
        (
            {
                "config": configs_for(64, torch.float32, gated=False)[-1],
                "arrived": torch.zeros(0, dtype=torch.int32),
            },
            r"arrived must have at least 1 numbers for 3 x [24], got 0",
        ),
    ],
)
def test_products_refuse(op: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**{"x": X, "weight": WEIGHT, **change})


def test_halves_and_biases_refuse() -> None:
    with pytest.raises(ValueError, match="an even number of rows, at least 2, got 3"):
        gate_up_silu(X, WEIGHT[:3])
    with pytest.raises(ValueError, match=r"bias must have shape \[4\], got \[3\]"):
        linear(X, WEIGHT, torch.zeros(3))
    with pytest.raises(ValueError, match="bias must be contiguous"):
        linear(X, WEIGHT, torch.zeros(8)[::2])


@pytest.mark.parametrize("config", [None, configs_for(16, torch.float32, gated=False)[0]], ids=str)
def test_the_compiled_products_refuse_tensors_of_the_cpu(config: Any) -> None:
    for call in (linear, gate_up_silu):
        for rows in (X, X[:0]):
            with pytest.raises(ValueError, match="CUDA device, got tensors on cpu"):
                call(rows, WEIGHT, config=config)


def test_references_by_hand() -> None:
    x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0], [3.0, -1.0]])
    assert linear_reference(x, weight, torch.tensor([0.5, 0.25])).tolist() == [[0.5, 1.25]]
    assert gate_up_silu_reference(x, weight + 1).tolist()[0] == pytest.approx(
        [3 / (1 + 2.718281828**-3) * 4]
    )
