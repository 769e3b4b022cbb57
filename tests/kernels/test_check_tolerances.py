"""Tolerances of the lists: right sums in bad orders keep them, sums of TF32 break them by far."""

import ast
from collections.abc import Callable
from pathlib import Path

import jetflow_kernels
import pytest
import torch
from jetflow_kernels.check import tolerances
from jetflow_kernels.ops.linear import gate_up_silu_reference, linear_reference
from torch import Tensor

INS = 4096


@pytest.fixture(scope="module")
def matrices() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, INS, generator=generator), torch.randn(128, INS, generator=generator)


def products(x: Tensor, weight: Tensor) -> Tensor:
    """[T, out, in] float32."""
    return x[:, None] * weight[None]


def one_chain(terms: Tensor) -> Tensor:
    """The sum of the last axis, each term added to all before it."""
    total = torch.zeros_like(terms[..., 0])
    for term in terms.unbind(-1):
        total = total + term
    return total


def in_order(x: Tensor, weight: Tensor) -> Tensor:
    return one_chain(products(x, weight))


def largest_first(x: Tensor, weight: Tensor) -> Tensor:
    order = x.abs().sum(0).argsort(descending=True)
    return one_chain(products(x, weight)[..., order])


def in_shares(x: Tensor, weight: Tensor) -> Tensor:
    shares = products(x, weight).unflatten(-1, (4, -1))
    return one_chain(one_chain(shares))


def tf32(x: Tensor) -> Tensor:
    """Rounded to 10 bits behind the point."""
    return ((x.view(torch.int32) + (1 << 12)) & ~((1 << 13) - 1)).view(torch.float32)


def by_tf32(x: Tensor, weight: Tensor) -> Tensor:
    return (tf32(x).double() @ tf32(weight).double().T).float()


def a_share_twice(x: Tensor, weight: Tensor) -> Tensor:
    part = slice(0, INS // 128)
    return linear_reference(x, weight) + x[:, part] @ weight[:, part].T


Product = Callable[[Tensor, Tensor], Tensor]
RIGHT = pytest.mark.parametrize("product", [in_order, largest_first, in_shares])
WRONG = pytest.mark.parametrize("product", [by_tf32, a_share_twice])


def error_of(product: Product, x: Tensor, weight: Tensor) -> float:
    wanted = linear_reference(x, weight)
    allowed = tolerances.of_product(x, weight, wanted)
    return tolerances.largest(product(x, weight), wanted, allowed)


def gated_error_of(product: Product, x: Tensor, weight: Tensor) -> float:
    wanted = gate_up_silu_reference(x, weight)
    gate, up = product(x, weight).chunk(2, dim=1)
    found = gate / (1 + (-gate).exp()) * up
    return tolerances.largest(found, wanted, tolerances.of_gated(x, weight, wanted))


@RIGHT
def test_a_right_sum_in_any_order_is_right(
    matrices: tuple[Tensor, Tensor], product: Product
) -> None:
    assert 0.01 < error_of(product, *matrices) < 0.5
    assert 0.01 < gated_error_of(product, *matrices) < 0.5


@WRONG
def test_what_is_no_sum_of_float32_is_wrong_by_far(
    matrices: tuple[Tensor, Tensor], product: Product
) -> None:
    assert error_of(product, *matrices) > 10
    assert gated_error_of(product, *matrices) > 10


def test_one_missing_product_is_wrong(matrices: tuple[Tensor, Tensor]) -> None:
    x, weight = matrices
    assert error_of(lambda x, weight: in_order(x[:, 1:], weight[:, 1:]), x, weight) > 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_types_are_right_to_a_step(
    matrices: tuple[Tensor, Tensor], dtype: torch.dtype
) -> None:
    x, weight = (each.to(dtype) for each in matrices)

    def rounded(x: Tensor, weight: Tensor) -> Tensor:
        return in_order(x.float(), weight.float()).to(dtype)

    def shifted(x: Tensor, weight: Tensor) -> Tensor:
        return linear_reference(x, weight) * (1 + 4 * torch.finfo(dtype).eps)

    assert error_of(linear_reference, x, weight) == 0
    assert error_of(rounded, x, weight) < 1
    assert error_of(shifted, x, weight) > 1


def turned(heads: Tensor, weight: Tensor, cos: Tensor, sin: Tensor, total: Tensor) -> Tensor:
    normed = weight * (heads * (total[..., None] / heads.shape[-1] + 1e-6).rsqrt())
    a, b = normed.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


@pytest.mark.parametrize("dim", [64, 256])
def test_turned_heads(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    heads = torch.randn(20, 3, dim, generator=generator)
    weight = torch.randn(dim, generator=generator) + 1
    angles = 60 * torch.rand(20, dim // 2, generator=generator)
    lines = angles.cos(), angles.sin()
    squares = heads.pow(2)
    exact = turned(
        heads.double(), weight.double(), lines[0].double(), lines[1].double(),
        squares.double().sum(-1),
    )  # fmt: skip
    allowed = tolerances.of_turned(heads, weight, *lines, 1e-6)
    for total in (one_chain(squares), one_chain(squares.sort(-1, descending=True).values)):
        found = turned(heads, weight, *lines, total)
        assert 0.01 < tolerances.largest(found, exact, allowed) < 0.5
    for wrong in (
        turned(tf32(heads), weight, *lines, squares.sum(-1)),
        turned(heads, weight, *lines, tf32(squares.sum(-1))),
        turned(heads, weight, *lines, squares[..., 1:].sum(-1)),
    ):
        assert tolerances.largest(wrong, exact, allowed) > 3


def test_nothing_is_allowed_where_nothing_is_said() -> None:
    one, none = torch.ones(2), torch.zeros(2, dtype=torch.float64)
    assert tolerances.largest(one, one, none) == 0
    for wrong in (one + 1, one * torch.nan):
        assert tolerances.largest(wrong, one, none) == torch.inf


def test_every_dot_multiplies_float32_as_such() -> None:
    files = Path(jetflow_kernels.__file__).parent.rglob("*.py")
    calls = [
        node
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.dot"
    ]
    precisions = [
        {ast.unparse(each.value) for each in call.keywords if each.arg == "input_precision"}
        for call in calls
    ]
    assert len(calls) > 4
    assert precisions == [{"'ieee'"}] * len(calls)
