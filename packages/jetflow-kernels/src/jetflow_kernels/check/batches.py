"""Ragged batches over permuted pages, NaN wherever nothing may be read, and their dense answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MASKS = ("random", "chain", "star", "binary", "caterpillar", "shuffled", "deep")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Arguments of ``tree_attention``, and its requests apart."""

    arguments: dict[str, Any]
    keys: list[Tensor]
    """[L, Hkv, D] of each request, L = prefix + rows."""
    values: list[Tensor]
    seen: list[Tensor]
    """[N, L] bool of each request."""
    nodes: tuple[int, ...]

    @property
    def used(self) -> int:
        """Rows that are no padding."""
        return sum(self.nodes)

    def rows_of(self, request: int) -> slice:
        """Where a request's rows are."""
        first = sum(self.nodes[:request])
        return slice(first, first + self.nodes[request])

    def answer(self) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp in float64, from dense matrices."""
        q = self.arguments["q"]
        out = torch.zeros(q.shape, dtype=torch.float64, device=q.device)
        lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64, device=q.device)
        for request in range(len(self.nodes)):
            rows = self.rows_of(request)
            queries, k, v = self._heads_first(request, torch.float64)
            scores = queries @ k.transpose(1, 2) * q.shape[2] ** -0.5
            scores = scores.masked_fill(~self.seen[request], -torch.inf)
            out[rows] = (scores.softmax(-1) @ v).transpose(0, 1)
            lse[rows] = scores.logsumexp(-1).T
        return out, lse

    def rounded(self) -> Tensor:
        """The same where a fused kernel of the type of the queries rounds: weights and result.

        Weights of keys are rounded before they are put on a scale, sums are exact.
        """
        q = self.arguments["q"]
        out = torch.zeros_like(q)
        for request, count in enumerate(self.nodes):
            if not count:
                continue
            queries, k, v = self._heads_first(request, torch.float64)
            scores = queries @ k.transpose(1, 2) * q.shape[2] ** -0.5
            scores = scores.masked_fill(~self.seen[request], -torch.inf)
            weights = (scores - scores.amax(-1, keepdim=True)).exp()
            mixed = weights.to(q.dtype).double() @ v / weights.sum(-1, keepdim=True)
            out[self.rows_of(request)] = mixed.transpose(0, 1).to(q.dtype)
        return out

    def _heads_first(self, request: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        q = self.arguments["q"][self.rows_of(request)].to(dtype).transpose(0, 1)
        group = q.shape[0] // self.keys[request].shape[1]
        k, v = (
            x[request].to(dtype).transpose(0, 1).repeat_interleave(group, dim=0)
            for x in (self.keys, self.values)
        )
        return q, k, v


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What all requests of a batch share."""

    heads: tuple[int, int] = (4, 2)
    dim: int = 64
    page: int = 16
    dtype: torch.dtype = torch.float16
    packed: bool = False
    """Whether keys and values lie in one pool, [pages, heads, page, 2 x dim]."""
    words: int = 0
    """Words of a row; 0: as many as the largest tree needs."""
    padding: int = 3
    masks: tuple[str, ...] = MASKS
    pages_seed: int = 0
    """Of the order of the pages, which changes nothing else."""
    finite_page: int = 0
    """Rows of the pages of requests whose unused slots hold 0 instead of NaN."""


def make_batch(
    nodes: Sequence[int], prefixes: Sequence[int], shape: Shape, device: str, *, seed: int = 0
) -> Batch:
    """A batch of random trees; the same seed gives the same requests whatever the pages."""
    generator = torch.Generator().manual_seed(seed)
    q_heads, kv_heads = shape.heads

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device, shape.dtype)

    rows = sum(nodes) + shape.padding
    q = normal(rows, q_heads, shape.dim)
    q[sum(nodes) :] = torch.nan
    lengths = [count + prefix for count, prefix in zip(nodes, prefixes, strict=True)]
    keys = [normal(length, kv_heads, shape.dim) for length in lengths]
    values = [normal(length, kv_heads, shape.dim) for length in lengths]
    trees = [
        tree(count, shape.masks[index % len(shape.masks)], generator)
        for index, count in enumerate(nodes)
    ]
    words = shape.words or max(1, -(-max(nodes, default=1) // 64))
    ancestors = torch.full((rows, words), -1, dtype=torch.int64)
    packed = [pack(seen, words) for seen in trees]
    ancestors[: sum(nodes)] = torch.cat([*packed, ancestors[:0]])
    k_pool, v_pool, table = _pools(keys, values, lengths, shape, device)
    starts = torch.tensor([0, *nodes]).cumsum(0).int()
    arguments = {
        "q": q,
        "k_pool": k_pool,
        "v_pool": v_pool,
        "page_table": table.to(device),
        "cu_nodes": starts.to(device),
        "prefix_len": torch.tensor(list(prefixes), dtype=torch.int32, device=device),
        "ancestors": ancestors.to(device),
    }
    seen = [
        torch.cat([torch.ones(count, prefix, dtype=torch.bool), one], dim=1).to(device)
        for count, prefix, one in zip(nodes, prefixes, trees, strict=True)
    ]
    return Batch(arguments, keys, values, seen, tuple(nodes))


def _pools(
    keys: list[Tensor], values: list[Tensor], lengths: list[int], shape: Shape, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Pools and table; two pages are nobody's, and tables name one of them past their end."""
    page, (_, kv_heads), dim = shape.page, shape.heads, shape.dim
    counts = [-(-length // page) for length in lengths]
    pages = sum(counts) + 2
    if shape.packed:
        both = torch.full((pages, kv_heads, page, 2 * dim), torch.nan, dtype=shape.dtype)
        both = both.to(device).transpose(1, 2)
        k_pool, v_pool = both[..., :dim], both[..., dim:]
    else:
        k_pool, v_pool = (
            torch.full((pages, page, kv_heads, dim), torch.nan, dtype=shape.dtype, device=device)
            for _ in range(2)
        )
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(shape.pages_seed))
    table = torch.full((len(lengths), max(counts, default=0) + 1), int(order[-1]))
    first = 0
    for request, (count, length) in enumerate(zip(counts, lengths, strict=True)):
        mine = order[first : first + count]
        first += count
        table[request, :count] = mine
        if page == shape.finite_page:
            k_pool[mine], v_pool[mine] = 0.0, 0.0
        places = torch.arange(length)
        where = mine[places // page].to(device), (places % page).to(device)
        k_pool[where], v_pool[where] = keys[request], values[request]
    return k_pool, v_pool, table.int()


def tree(count: int, mask: str, generator: torch.Generator) -> Tensor:
    """What each row of a tree of one kind sees, [count, count] bool, on the CPU."""
    draws = torch.rand(count, generator=generator).tolist()
    parents = {
        "chain": lambda row: row - 1,
        "star": lambda row: 0,
        "binary": lambda row: (row - 1) // 2,
        "caterpillar": lambda row: row - 1 if row % 2 else max(row - 2, 0),
        "deep": lambda row: max(0, row - 1 - int(3 * draws[row])),
    }.get(mask, lambda row: int(row * draws[row]))
    seen = torch.eye(count, dtype=torch.bool)
    for row in range(1, count):
        seen[row] |= seen[parents(row)]
    if mask == "shuffled" and count:
        # The root stays first; children may come before their parents.
        rest = 1 + torch.randperm(count - 1, generator=generator)
        order = torch.cat([torch.zeros(1, dtype=torch.int64), rest])
        seen = seen[order][:, order]
    return seen


def pack(seen: Tensor, words: int) -> Tensor:
    """[N, M] bool as [N, words] int64, bit ``c % 64`` of word ``c // 64`` for column c."""
    padded = torch.nn.functional.pad(seen.long(), (0, 64 * words - seen.shape[1]))
    shifts = torch.arange(64, device=seen.device)
    # Distinct bits add up without a carry; bit 63 is the sign.
    return (padded.view(len(seen), words, 64) << shifts).sum(2)
