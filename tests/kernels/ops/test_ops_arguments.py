"""What the engine's operations refuse, what they compute slowly, and how they are offered."""

from __future__ import annotations

import ast
import inspect
import math
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import jetflow_core.rounds.find
import jetflow_core.stacks.find
import jetflow_kernels.ops
import pytest
import torch
from jetflow_core.rounds import RoundOps, round_ops_for
from jetflow_core.stacks import LayerOps, layer_ops_for
from jetflow_kernels.ops import (
    add_rms_norm,
    add_rms_norm_reference,
    layer_steps,
    rms_norm,
    rms_norm_reference,
    round_steps,
    silu_mul,
    silu_mul_reference,
)

FOLDER = Path(jetflow_kernels.ops.__file__).parent
PROJECT = Path(__file__).parents[3] / "packages" / "jetflow-kernels" / "pyproject.toml"
CUDA = torch.device("cuda")
X, WEIGHT = torch.zeros(3, 8), torch.ones(8)


@pytest.mark.parametrize("protocol", [RoundOps, LayerOps], ids=lambda each: each.__name__)
def test_the_operations_take_what_core_asks(protocol: type) -> None:
    ops = round_steps if protocol is RoundOps else layer_steps
    asked = {name: each for name, each in vars(protocol).items() if name[0] != "_"}
    assert len(asked) >= 5
    for name, each in asked.items():
        wanted = [p for p in inspect.signature(each).parameters.values() if p.name != "self"]
        taken = inspect.signature(getattr(ops, name)).parameters
        assert [p.name for p in wanted] == [p for p in taken if p in {w.name for w in wanted}], name
        for parameter in wanted:
            assert taken[parameter.name].kind is parameter.kind, (name, parameter.name)
        # What is beyond the Protocol may be left out.
        beyond = [p for p in taken.values() if p.name not in {w.name for w in wanted}]
        assert all(p.default is not p.empty for p in beyond), name


def _offered(group: str) -> list[EntryPoint]:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    return [EntryPoint(name, at, group) for name, at in project["entry-points"][group].items()]


def test_core_finds_them_by_their_entry_points() -> None:
    rounds = round_ops_for(CUDA, _offered(jetflow_core.rounds.find.GROUP))
    assert (rounds.name, rounds.ops) == ("triton", round_steps)
    layers = layer_ops_for(CUDA, _offered(jetflow_core.stacks.find.GROUP))
    assert (layers.name, layers.ops) == ("triton", layer_steps)


def test_only_kernel_files_need_triton_to_be_imported() -> None:
    looked_at = 0
    for file in FOLDER.glob("*.py"):
        if file.stem.endswith("_kernel"):
            continue
        looked_at += 1
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            names = []
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                names = [statement.module or ""]
            assert not any(name.startswith("triton") for name in names), file.name
            assert not any(name.endswith("_kernel") for name in names), file.name
    assert looked_at >= 5


def test_norms_by_hand() -> None:
    x, change = torch.tensor([[3.0, -4.0]]), torch.tensor([[1.0, 4.0]])
    weight, total = torch.tensor([2.0, 0.5]), torch.empty(1, 2)
    found = rms_norm_reference(x, weight, 0.5)
    assert found.tolist()[0] == pytest.approx([6 / math.sqrt(13), -2 / math.sqrt(13)])
    found = add_rms_norm_reference(x, change, weight, 0.0, total)
    assert total.tolist() == [[4.0, 0.0]]
    assert found.tolist()[0] == pytest.approx([2 * math.sqrt(2), 0.0])


def test_gates_by_hand() -> None:
    found = silu_mul_reference(torch.tensor([[math.log(3), -math.log(3), 4.0, 8.0]]))
    assert found.tolist()[0] == pytest.approx([3 * math.log(3), -2 * math.log(3)])


@pytest.mark.parametrize("op", [rms_norm, rms_norm_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": X.double()}, r"x must be .* got torch.float64"),
        ({"x": X[0]}, r"x must have shape \[any, any\], got \[8\]"),
        ({"x": X[:, :0], "weight": WEIGHT[:0]}, r"width H of x must be in 1..16384, got 0"),
        ({"x": torch.zeros(1, 16385)}, r"width H of x must be in 1..16384, got 16385"),
        ({"x": torch.zeros(8, 3).T}, r"x must have no gaps in a row, got strides \(1, 3\)"),
        ({"weight": WEIGHT[:7]}, r"weight must have shape \[8\], got \[7\]"),
        ({"weight": WEIGHT.half()}, r"weight must be torch.float32, got torch.float16"),
        ({"weight": torch.ones(16)[::2]}, r"weight must be contiguous"),
        ({"eps": -1e-6}, r"eps must be at least 0, got -1e-06"),
        ({"eps": math.nan}, r"eps must be at least 0, got nan"),
        ({"out": X[:2]}, r"out must have shape \[3, 8\], got \[2, 8\]"),
        ({"out": X.half()}, r"out must be torch.float32, got torch.float16"),
    ],
)
def test_norms_refuse(op: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**{"x": X, "weight": WEIGHT, "eps": 1e-6, **change})


@pytest.mark.parametrize("op", [add_rms_norm, add_rms_norm_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"change": X[:2]}, r"change must have shape \[3, 8\], got \[2, 8\]"),
        ({"change": X.half()}, r"change must be torch.float32, got torch.float16"),
        ({"total": torch.zeros(3, 9)}, r"total must have shape \[3, 8\], got \[3, 9\]"),
        ({"total": torch.zeros(3, 16)[:, ::2]}, r"total must have no gaps in a row"),
        ({"eps": -1.0}, r"eps must be at least 0, got -1.0"),
    ],
)
def test_sums_refuse(op: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    good = {"x": X, "change": X, "weight": WEIGHT, "eps": 1e-6, "total": torch.zeros(3, 8)}
    with pytest.raises(ValueError, match=message):
        op(**{**good, **change})


@pytest.mark.parametrize("op", [silu_mul, silu_mul_reference])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gate_up": X.double()}, r"gate_up must be .* got torch.float64"),
        ({"gate_up": X[:, :7]}, r"even number of columns, at least 2, got 7"),
        ({"gate_up": X[:, :0]}, r"even number of columns, at least 2, got 0"),
        ({"gate_up": torch.zeros(8, 3).T}, r"gate_up must have no gaps in a row"),
        ({"out": X}, r"out must have shape \[3, 4\], got \[3, 8\]"),
        ({"out": X[:, :4].half()}, r"out must be torch.float32, got torch.float16"),
        ({"out": X[:, ::2]}, r"out must have no gaps in a row"),
    ],
)
def test_gates_refuse(op: Callable[..., Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        op(**{"gate_up": X, **change})


@pytest.mark.parametrize(
    "call",
    [
        lambda: rms_norm(X, WEIGHT, 1e-6),
        lambda: add_rms_norm(X, X, WEIGHT, 1e-6, torch.zeros(3, 8)),
        lambda: silu_mul(X),
        lambda: silu_mul(X[:0]),
    ],
)
def test_the_compiled_kernels_refuse_tensors_of_the_cpu(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="CUDA device, got tensors on cpu"):
        call()
