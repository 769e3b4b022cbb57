"""Tree attention in two kernels equals the float64 reference; arguments of measurement keep bits.

On the CPU with TRITON_INTERPRET=1; without it the same lists run on a CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention_reference
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.apart import Apart
from jetflow_kernels.attention.launch import INTERPRETED, launch
from torch import Tensor

ATOL = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PLAIN = Apart(
    rows=16 if INTERPRETED else 64, columns=64, warps=4, stages=3, programs=2, specialized=False,
    shortest=64,
)  # fmt: skip
OWN_WARPS = replace(PLAIN, rows=128, stages=2, programs=1, specialized=True)
WAYS = {"overlapped": replace(PLAIN, overlapped=True)}
if not INTERPRETED:
    # The interpreter would run all alike.
    WAYS |= {"plain": PLAIN, "own warps": OWN_WARPS, "both": replace(OWN_WARPS, overlapped=True)}
BATCHES = {
    "ragged": ((5, 0, 33), (130, 64, 0)),
    "pieces": ((9,), (330,)),
    "rows of decoding": ((1, 1, 1), (129, 5, 260)),
}


def _attend(batch: Any, moved: Callable[[Tensor], Tensor], **calls: Any) -> tuple[Tensor, Tensor]:
    arguments = {name: moved(each) for name, each in batch.items()}
    out = torch.full_like(arguments["q"], torch.nan)
    lse = out.new_full(out.shape[:2], torch.nan, dtype=torch.float32)
    scale = calls.pop("scale", 0.125)
    launch(TreeAttentionArguments(**arguments), out=out, lse=lse, scale=scale, **calls)
    return out.cpu(), lse.cpu()


@pytest.fixture
def moved(moved_together: Callable[..., list[Tensor]]) -> Callable[[Tensor], Tensor]:
    """Puts a tensor where the kernels run."""
    return lambda tensor: moved_together([tensor], "cpu" if INTERPRETED else "cuda")[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "dtype", "packed", "scale"),
    [
        ("ragged", torch.float16, True, 0.125),
        ("pieces", torch.bfloat16, False, 0.125),
        ("pieces", torch.float16, True, -0.1),
        ("rows of decoding", torch.float16, False, 0.125),
    ],
)
def test_values(
    make_batch: Callable[..., Any], moved: Callable[[Tensor], Tensor],
    way: str, name: str, dtype: torch.dtype, packed: bool, scale: float,
) -> None:  # fmt: skip
    nodes, prefixes = BATCHES[name]
    batch = make_batch(nodes, prefixes, page=64, heads=(2, 1), dim=64, dtype=dtype, mask="shuffled")
    arguments = dict(batch.arguments)
    if packed:
        both = torch.cat([batch.k_pool, batch.v_pool], dim=-1).transpose(1, 2).contiguous()
        arguments["k_pool"] = both[..., :64].transpose(1, 2)
        arguments["v_pool"] = both[..., 64:].transpose(1, 2)
    got, lse = _attend(arguments, moved, tiles=WAYS[way], scale=scale)
    want_lse = torch.full(batch.q.shape[:2], torch.nan)
    want = tree_attention_reference(**batch.arguments, lse=want_lse, scale=scale)
    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=ATOL[dtype])
    torch.testing.assert_close(lse, want_lse, rtol=0, atol=1e-5)


def test_what_only_starts_otherwise_changes_no_bits(
    make_batch: Callable[..., Any], moved: Callable[[Tensor], Tensor]
) -> None:
    batch = make_batch((9,), (330,), page=128, heads=(2, 1), dim=64, dtype=torch.float16).arguments
    tiles = plan.tiles_for(9, 1, 2, 64, torch.float16)
    assert tiles.looks_up(128)
    want = _attend(batch, moved, tiles=tiles)
    for other in ({"tiles": replace(tiles, by_page=False)}, {"tiles": tiles, "overlapped": True}):
        got = _attend(batch, moved, **other)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_a_request_does_not_feel_the_others(
    make_batch: Callable[..., Any], moved: Callable[[Tensor], Tensor]
) -> None:
    batch = make_batch((9, 9), (330, 70), page=64, heads=(2, 1), dim=64, dtype=torch.float16)
    want = _attend(batch.arguments, moved, tiles=PLAIN)[0]
    others = dict(batch.arguments)
    others["prefix_len"] = torch.tensor([330, 3], dtype=torch.int32)
    others["ancestors"] = torch.cat([batch.ancestors[:9], batch.ancestors[9:] * 0])
    got = _attend(others, moved, tiles=PLAIN)[0]
    assert torch.equal(got[:9], want[:9]) and not torch.equal(got[9:], want[9:])
