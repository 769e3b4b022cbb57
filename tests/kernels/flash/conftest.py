"""A stand-in for flash-attn 4: it notes what it is given and computes it one number at a time.

It knows its interface from the documentation of 4.0.0b36: packed rows, pages, a mask function that
is asked with one number each in vectors, about rows and keys past the end too, and memory behind
the last row that nobody writes.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from jetflow_kernels.attention.flash import library, limits, mask
from torch import Tensor

TILE = 128
"""Rows of its tiles and keys of its tiles; pages of this size are brought whole."""


@dataclass
class Noted:
    """What the stand-in was given, call by call."""

    calls: list[dict[str, Any]] = field(default_factory=list)


class Bounded:
    """A tensor on the device: an index outside it is an error, a negative one too."""

    def __init__(self, tensor: Tensor) -> None:
        self.numbers = tensor.tolist()
        self.shape = tensor.shape

    def __getitem__(self, at: tuple[int, int]) -> int:
        row, column = at
        assert 0 <= row < self.shape[0] and 0 <= column < self.shape[1], f"index {at} is outside"
        number: int = self.numbers[row][column]
        return number


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor,
    seqused_k: Tensor,
    max_seqlen_q: int,
    page_table: Tensor,
    softmax_scale: float,
    causal: bool = False,
    mask_mod: Any = None,
    aux_tensors: list[Tensor] | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``flash_attn_varlen_func``, as far as it is used."""
    for lengths in (cu_seqlens_q, seqused_k, page_table):
        assert lengths.dtype == torch.int32 and lengths.is_contiguous()
    assert page_table.shape[0] == len(seqused_k) == len(cu_seqlens_q) - 1
    assert k.shape == v.shape and k.stride(-1) == v.stride(-1) == 1
    assert not (causal and mask_mod)
    out = torch.full(q.shape, torch.nan, dtype=q.dtype)
    lse = torch.full((q.shape[1], len(q)), torch.nan)
    tensors = None if aux_tensors is None else [Bounded(each) for each in aux_tensors]
    starts = cu_seqlens_q.tolist()
    for request, length in enumerate(seqused_k.tolist()):
        first, rows = starts[request], starts[request + 1] - starts[request]
        assert rows <= max_seqlen_q
        if not rows:
            continue
        lengths = SimpleNamespace(seqlen_q=rows, seqlen_k=length, offset_q=first, offset_k=0)
        if causal:
            seen = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)
        else:
            seen = _asked(mask_mod, request, lengths, tensors)
        mine = slice(first, first + rows)
        keys, values = (_gathered(pool, page_table[request], length) for pool in (k, v))
        out[mine], lse[:, mine] = _attention(q[mine], keys, values, seen, softmax_scale)
    return out, lse if return_lse else None


def _asked(mask_mod: Any, request: int, lengths: Any, tensors: Any) -> Tensor:
    """What the mask says of every row and key; those past the end are asked for and thrown away."""
    rows, length = lengths.seqlen_q, lengths.seqlen_k
    columns = range(-(-length // TILE) * TILE)

    def row_of(row: int) -> list[bool]:
        return [
            mask_mod([request], [0], [row], [column], lengths, tensors)[0] for column in columns
        ]

    for beyond in (rows, rows + TILE - 1):
        assert len(row_of(beyond)) == len(columns)
    return torch.tensor([row_of(row)[:length] for row in range(rows)])


def _gathered(pool: Tensor, table: Tensor, length: int) -> Tensor:
    """Keys or values in order: whole pages of a tile's size, zeros behind the last row else."""
    page = pool.shape[1]
    used = -(-length // page)
    whole = pool[table[:used].long()].flatten(0, 1).double()
    if page != TILE:
        whole[length:] = 0.0
    return whole


def _attention(
    q: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // keys.shape[1]
    keys, values = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (keys, values))
    scores = q.double().transpose(0, 1) @ keys.transpose(1, 2) * scale
    seen = torch.nn.functional.pad(seen, (0, scores.shape[-1] - seen.shape[1]))
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(torch.isneginf(lse)[..., None], 0.0, scores.softmax(-1))
    return (weights @ values).transpose(0, 1).to(q.dtype), lse.float()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[..., Any]], None]]:
    """`place(call)`: modules of flash-attn's names whose attention is ``call``, for one test."""
    forget()
    yield lambda call: place_modules(monkeypatch, call)
    forget()


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch, place: Callable[[Callable[..., Any]], None]) -> Noted:
    """flash-attn 4 in a machine that has it and a card for it, all of it the stand-in."""
    noted = Noted()

    def noting(*tensors: Tensor, **options: Any) -> tuple[Tensor, Tensor | None]:
        noted.calls.append({**dict(zip("qkv", tensors, strict=True)), **options})
        return attend(*tensors, **options)

    noting.__signature__ = inspect.signature(attend)  # type: ignore[attr-defined]
    place(noting)
    monkeypatch.setattr(limits, "unavailable", lambda device: None)
    return noted


def place_modules(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    """Puts modules of flash-attn's names in the place of installed ones."""
    contents: dict[str, dict[str, Any]] = {
        "flash_attn": {},
        "flash_attn.cute": {"flash_attn_varlen_func": call},
        "flash_attn.cute.utils": {"scalar_to_ssa": lambda scalar, kind: [kind(scalar)]},
        "cutlass": {"min": min, "max": max, "Boolean": bool},
        "cutlass.cute": {"jit": lambda function: function},
    }
    for name, names in contents.items():
        module = ModuleType(name)
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)


def forget() -> None:
    """Lets the next call load the library anew."""
    library.load.cache_clear()
    mask.tree_mask.cache_clear()
    limits._missing.cache_clear()
