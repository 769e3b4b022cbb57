"""Interpreted, or on a CUDA device: candidates along the drafted paths equal their reference."""

from __future__ import annotations

import pytest
import torch
from jetflow_kernels.round import path_candidates, path_candidates_reference
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device")


def pools(
    requests: int, depths: int, width: int, pool: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, ...]:
    """Log-probabilities that are apart, so that rounding does not decide what is chosen."""
    generator = torch.Generator().manual_seed(requests * 1000 + depths * 100 + width * 10 + pool)

    def shuffled(*shape: int) -> Tensor:
        order = torch.rand(*shape, generator=generator, device="cpu").argsort(-1)
        return (-0.3 - 0.35 * order).log_softmax(-1) - 0.2

    bias = 0.4 * torch.randn(requests, depths, pool, pool, generator=generator, device="cpu")
    names = torch.rand(requests, depths + 1, 500, generator=generator, device="cpu").argsort(-1)
    given = (
        names[:, 0, :width].int(),
        shuffled(requests, width).sort(descending=True).values,
        names[:, 1:, :pool].int(),
        shuffled(requests, depths, pool),
        bias.to(dtype),
        torch.tensor([1.0, 0.6, 1.7][:requests], dtype=torch.float64),
    )
    return tuple(tensor.to(torch.get_default_device()) for tensor in given)


@pytest.mark.parametrize(
    ("requests", "depths", "width", "pool", "dtype"),
    [
        (3, 14, 16, 64, torch.bfloat16),
        (2, 3, 5, 11, torch.float32),
        (1, 2, 1, 1, torch.float32),
        (2, 1, 4, 4, torch.float16),
        (2, 0, 3, 8, torch.float32),
        (1, 1, 32, 128, torch.float32),
    ],
)
def test_candidates_along_paths(
    requests: int, depths: int, width: int, pool: int, dtype: torch.dtype
) -> None:
    given = pools(requests, depths, width, pool, dtype)
    (tokens, table), wanted = path_candidates(*given), path_candidates_reference(*given)
    assert torch.equal(tokens, wanted[0])
    torch.testing.assert_close(table, wanted[1], atol=2e-5, rtol=2e-5)
    assert (table <= 0).all()
    assert (table.exp().sum(-1) <= 1 + 1e-5).all()


def test_lines_behind_the_candidates_of_depth_1_are_not_read() -> None:
    given = pools(2, 2, 3, 8)
    wanted = path_candidates(*given)
    given[4][:, 0, 3:] = torch.nan
    found = path_candidates(*given)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_equal_chances_go_by_their_place_in_the_pool() -> None:
    first, names = torch.tensor([[-1.0, -1.0]]), torch.arange(6, dtype=torch.int32)
    base = torch.full((1, 1, 4), -2.0)
    tokens, table = path_candidates(
        names[None, :2], first, names[None, None, 2:].contiguous(), base,
        torch.zeros(1, 1, 4, 4), torch.ones(1, dtype=torch.float64),
    )  # fmt: skip
    assert tokens.tolist() == [[[0, 1], [2, 3]]]
    torch.testing.assert_close(table[0, 1], base[0, 0, :2].expand(2, -1))


def test_what_is_impossible_stays_so_and_nan_is_not_hidden() -> None:
    given = pools(3, 3, 3, 6)
    given[1][0, 1] = -torch.inf
    given[3][0, 1, ::2] = -torch.inf
    given[3][1, 1, 2] = torch.nan
    given[4][2, 1, :, 4] = torch.nan
    found, wanted = path_candidates(*given), path_candidates_reference(*given)
    assert torch.equal(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1], atol=2e-5, rtol=2e-5, equal_nan=True)
    assert found[1][0, 0, :, 1].isneginf().all()
    assert found[1].isnan().flatten(1).any(1).tolist() == [False, True, True]


def test_it_writes_into_given_tensors_and_has_a_fake() -> None:
    given = pools(2, 2, 3, 8)
    wanted = path_candidates(*given)
    out = torch.empty_like(wanted[0]), torch.empty_like(wanted[1])
    found = path_candidates(*given, out=out)
    assert found[0] is out[0]
    assert all(torch.equal(one, other) for one, other in zip(out, wanted, strict=True))
    torch.library.opcheck(
        torch.ops.jetflow_kernels.path_candidates.default,
        (*given, *out),
        test_utils=("test_schema", "test_faketensor"),
    )
