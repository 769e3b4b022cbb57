"""Interpreted Triton: row attention equals the float64 reference and feels no other row.

On the CPU with TRITON_INTERPRET=1; without it the same lists run on a CUDA device.
"""

from typing import Any

import pytest
import torch
from jetflow_kernels.rows import attend_rows, row_attention, row_attention_reference
from jetflow_kernels.rows.attention_kernel import row_attention_kernel
from jetflow_kernels.rows.op import launch
from jetflow_kernels.rows.tiles import Tiles, tiles_for
from torch import Tensor
from triton.runtime.jit import JITFunction

DEVICE = "cuda" if isinstance(row_attention_kernel, JITFunction) else "cpu"
ATOL = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
CAPACITY = 150
# Borders of tiles of 16, 32 and 64 columns, nothing at all, and the whole cache.
LENGTHS = (0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, CAPACITY)
FEW = (0, 1, 63, 64, 65, CAPACITY)
CASES = [
    *((kv, group, 64, torch.bfloat16) for kv, group in ((3, 3), (2, 1), (1, 2), (1, 4), (1, 8))),
    *((2, group, 128, torch.bfloat16) for group in (1, 2, 3, 4, 8)),
    *((1, 3, dim, torch.float16) for dim in (64, 128, 256)),
    *((1, 4, dim, torch.float32) for dim in (64, 128, 256)),
    *((1, group, 64, torch.float16) for group in (16, 20, 32)),
    *((2, 2, dim, torch.bfloat16) for dim in (8, 16, 24, 32, 80, 96, 200)),
]
QUICK = [(3, 3, 64, torch.bfloat16), (1, 4, 128, torch.float16), (2, 2, 80, torch.float32)]


def _rows(
    lengths: tuple[int, ...], kv_heads: int, group: int, dim: int, dtype: torch.dtype, *,
    layers: int = 1, seed: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """Arguments with NaN wherever nothing may be read, as views of a larger cache."""
    torch.manual_seed(seed)
    rows = len(lengths)
    shape = (rows, CAPACITY, kv_heads, layers + 1, dim)
    caches = [torch.randn(shape).to(DEVICE, dtype) for _ in range(2)]
    for cache in caches:
        cache[:, :, :, 1:] = torch.nan
        for row, length in enumerate(lengths):
            cache[row, length:] = torch.nan
    return {
        "queries": torch.randn(rows, kv_heads * group, dim).to(DEVICE, dtype),
        "keys": caches[0][:, :, :, 0],
        "values": caches[1][:, :, :, 0],
        "lengths": torch.tensor(lengths, dtype=torch.int32, device=DEVICE),
    }


def _check(arguments: dict[str, Tensor], **calls: Any) -> None:
    queries = arguments["queries"]
    out = torch.full_like(queries, torch.nan)
    assert row_attention(**arguments, out=out, **calls) is out
    want = row_attention_reference(**arguments, **calls)
    assert torch.isfinite(want).all()
    torch.testing.assert_close(out.double(), want.double(), rtol=0, atol=ATOL[queries.dtype])
    assert not out[arguments["lengths"] == 0].any()


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_a_few(case: Any) -> None:
    _check(_rows(FEW, *case))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all(case: Any) -> None:
    _check(_rows(LENGTHS, *case))


@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
def test_any_finite_scale(scale: float) -> None:
    _check(_rows((0, 70), 1, 2, 64, torch.float32), scale=scale)


def test_any_strides_of_every_argument() -> None:
    arguments = _rows((5, 0, 70), 2, 3, 64, torch.float16)
    want = row_attention(**arguments)
    wide = torch.full((3, 2, 6, 64), torch.nan, dtype=torch.float16, device=DEVICE)
    spread = torch.stack([arguments["lengths"], torch.full_like(arguments["lengths"], 99)], 1)
    other = {
        "queries": arguments["queries"].transpose(1, 2).contiguous().transpose(1, 2),
        # Keys and values laid out differently from each other.
        "keys": arguments["keys"].transpose(1, 2).contiguous().transpose(1, 2),
        "values": arguments["values"].transpose(0, 3).contiguous().transpose(0, 3),
        "lengths": spread[:, 0],
    }
    got = row_attention(**other, out=wide[:, 0])
    assert torch.equal(got, want)
    assert wide[:, 1].isnan().all()


def test_a_row_does_not_feel_its_batch() -> None:
    arguments = _rows(FEW, 3, 3, 64, torch.bfloat16)
    together = row_attention(**arguments)
    for row in range(len(FEW)):
        alone = {name: tensor[row : row + 1] for name, tensor in arguments.items()}
        assert torch.equal(row_attention(**alone), together[row : row + 1])


def test_large_scores_stay_finite() -> None:
    arguments = _rows((70, 1), 1, 2, 64, torch.float32)
    arguments["queries"] *= 1e4
    _check(arguments)


def test_the_entry_point_fits_the_decoders_call() -> None:
    arguments = _rows((3, 66), 1, 2, 64, torch.float16)
    assert torch.equal(attend_rows(*arguments.values(), CAPACITY), row_attention(**arguments))


def test_no_rows() -> None:
    assert row_attention(**_rows((), 1, 2, 64, torch.float16)).shape == (0, 2, 64)


@pytest.mark.slow
def test_other_tiles_agree() -> None:
    arguments = _rows(LENGTHS, 1, 3, 64, torch.float16)
    want = row_attention_reference(**arguments).double()
    chosen = tiles_for(64, torch.float16)
    for columns in (16, 32, 128):
        out = torch.full_like(arguments["queries"], torch.nan)
        tiles = Tiles(columns=columns, warps=chosen.warps, stages=chosen.stages)
        launch(*arguments.values(), 0.125, out, tiles)
        torch.testing.assert_close(out.double(), want, rtol=0, atol=2e-3)


@pytest.mark.slow
def test_torch_accepts_the_operator() -> None:
    arguments = _rows((3, 0), 1, 2, 64, torch.float16)
    out = torch.zeros_like(arguments["queries"])
    operator = torch.ops.jetflow_kernels.row_attention_out.default
    found = torch.library.opcheck(operator, (*arguments.values(), 0.125, out))
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.slow
@pytest.mark.parametrize("strides", [(2**30, 64), (64, 2**25)], ids=["rows", "columns"])
def test_offsets_past_32_bits(strides: tuple[int, int]) -> None:
    # Only the touched pages of these 4 GiB are ever backed by memory.
    cache = torch.empty(2**31 + 2**14, dtype=torch.float16, device=DEVICE)
    rows = cache.as_strided((3, 65, 1, 64), (strides[0], strides[1], 64, 1))
    rows[:2, :, 0], rows[2, :, 0] = torch.nan, 1.0
    lengths = torch.tensor([0, 0, 65], dtype=torch.int32, device=DEVICE)
    queries = torch.ones(3, 1, 64, dtype=torch.float16, device=DEVICE)
    got = row_attention(queries, rows, rows, lengths)
    assert torch.equal(got[2], torch.ones_like(got[2]))
    assert not got[:2].any()
