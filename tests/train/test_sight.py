"""What packed rows see, as documents and as a mask, is the same."""

from __future__ import annotations

import sys
from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_train.sight import (
    Documents,
    document_mask,
    document_starts,
    masked_attention,
    packed_attention,
    packs_documents,
)
from jetflow_train.target_layer import mask_bias
from numpy.typing import NDArray
from torch import Tensor

CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@st.composite
def packed_documents(draw: st.DrawFn) -> NDArray[np.int64]:
    """Rows of documents numbered from 0, with padding of -1 behind them."""
    rows, width = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    made = np.full((rows, width), -1, dtype=np.int64)
    for row in made:
        ends = sorted(draw(st.sets(st.integers(1, width), max_size=width)))
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            row[start:end] = number
    return made


@given(packed_documents())
def test_documents_see_what_the_mask_shows(documents: NDArray[np.int64]) -> None:
    rows, width = documents.shape
    starts = document_starts(documents)
    count = len(starts) - 1
    assert count & (count - 1) == 0
    assert (np.diff(starts) >= 0).all()
    assert starts[-1] == rows * width
    seen = np.zeros((rows * width, rows * width), dtype=np.bool_)
    for start, end in pairwise(starts):
        seen[start:end, start:end] = np.tril(np.ones((end - start, end - start), dtype=np.bool_))
    mask = torch.block_diag(*document_mask(torch.from_numpy(documents)).int()).bool()
    assert np.array_equal(seen, mask.numpy())


def test_packed_attention_equals_attention_under_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def varlen_attn(
        q: Tensor, k: Tensor, v: Tensor, starts: Tensor, same: Tensor, *rest: Any, **options: Any
    ) -> Tensor:
        """Torch's, which a CPU does not have: each document by itself."""
        assert same is starts
        assert rest == (9, 9)
        assert options == {"window_size": (-1, 0)}
        out = torch.empty_like(q)
        for start, end in pairwise(starts.tolist()):
            own = [x[start:end].transpose(0, 1) for x in (q, k, v)]
            attended = torch.nn.functional.scaled_dot_product_attention(*own, is_causal=True)
            out[start:end] = attended.transpose(0, 1)
        return out

    module = ModuleType("torch.nn.attention.varlen")
    module.varlen_attn = varlen_attn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    documents = np.array([[0, 0, 0, 1, 1, 1, 1, -1, -1], [0, 1, 1, 1, 1, 1, 2, 2, 2]])
    q, k, v = torch.randn(3, 2, 4, 9, 8, dtype=torch.float64)
    bias = mask_bias(document_mask(torch.from_numpy(documents))[:, None], q.dtype)
    starts = torch.from_numpy(document_starts(documents))
    packed = packed_attention(q, k, v, Documents(starts, 9))
    assert torch.allclose(packed, masked_attention(q, k, v, bias), atol=1e-12, rtol=0)


def test_documents_are_packed_where_flash_attention_runs() -> None:
    assert packs_documents(CUDA, torch.bfloat16, 64)
    assert not packs_documents(CPU, torch.bfloat16, 64)
    assert not packs_documents(CUDA, torch.float32, 64)
    assert not packs_documents(CUDA, torch.float16, 100)
    assert not packs_documents(CUDA, torch.float16, 512)
