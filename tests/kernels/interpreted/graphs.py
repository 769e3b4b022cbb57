"""One captured graph serves other prefixes, trees and sizes. On a CUDA device only."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention, tree_attention_reference
from torch import Tensor

PAGES, PAGE = 12, 64
CAPACITY = PAGES * PAGE
ROWS = 200
ATOL = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Nodes and prefixes of three requests within one capture: longer, shorter, none at all.
ROUNDS = (
    ((70, 5, 1), (300, 64, 0)),
    ((1, 1, 1), (699, 1, 128)),
    ((0, 128, 0), (5, 511, 9)),
    ((64, 64, 64), (127, 128, 129)),
    ((0, 0, 0), (1, 2, 3)),
)


def _chains(nodes: tuple[int, ...]) -> Tensor:
    """Words of chains, one after the other, [ROWS, 3]."""
    words = torch.zeros(ROWS, 3, dtype=torch.int64)
    row = 0
    for count in nodes:
        for node in range(count):
            for word in range(3):
                bits = min(max(node + 1 - 64 * word, 0), 64)
                words[row, word] = -1 if bits == 64 else (1 << bits) - 1 if bits < 63 else 2**63 - 1
            row += 1
    return words


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_lengths(backend: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    on: dict[str, Any] = {"device": "cuda", "dtype": dtype}
    pool = (3 * PAGES, PAGE, 2, 128)
    arguments = {
        "q": torch.randn(ROWS, 8, 128, **on),
        "k_pool": torch.randn(pool, **on),
        "v_pool": torch.randn(pool, **on),
        "page_table": torch.randperm(3 * PAGES, device="cuda").int().view(3, PAGES),
        "cu_nodes": torch.zeros(4, dtype=torch.int32, device="cuda"),
        "prefix_len": torch.zeros(3, dtype=torch.int32, device="cuda"),
        "ancestors": torch.zeros(ROWS, 3, dtype=torch.int64, device="cuda"),
    }
    out, lse = torch.empty_like(arguments["q"]), torch.empty(ROWS, 8, device="cuda")
    call: Callable[..., Tensor] = tree_attention
    call(**arguments, out=out, lse=lse, backend=backend)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(**arguments, out=out, lse=lse, backend=backend)
    for nodes, prefixes in (*ROUNDS, *ROUNDS[::-1]):
        arguments["cu_nodes"].copy_(torch.tensor([0, *nodes], dtype=torch.int32).cumsum(0))
        arguments["prefix_len"].copy_(torch.tensor(prefixes))
        arguments["ancestors"].copy_(_chains(nodes))
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        again = torch.full_like(out, torch.nan)
        call(**arguments, out=again, backend=backend)
        assert torch.equal(out, again)
        want = tree_attention_reference(**arguments)
        assert (out.double() - want.double()).abs().max() <= ATOL[dtype]
        assert not out[sum(nodes) :].any() and torch.isneginf(lse[sum(nodes) :]).all()
        assert torch.isfinite(lse[: sum(nodes)]).all() and torch.isfinite(out).all()
