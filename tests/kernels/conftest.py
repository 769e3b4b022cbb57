"""Ragged paged batches with everything that must not be read filled with NaN."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"


@pytest.fixture
def on_the_device() -> Iterator[None]:
    """New tensors are made where the kernels run: on the CPU in Triton's interpreter.

    Without it and without a CUDA device the kernels refuse what they get, and the checks fail.
    """
    with torch.device(DEVICE):
        yield


@pytest.fixture(scope="session")
def moved_together() -> Callable[..., list[Tensor]]:
    """`moved_together(tensors, device)`: copies with their strides, offsets and common storages."""
    return move_together


def move_together(tensors: Sequence[Tensor], device: str = DEVICE) -> list[Tensor]:
    """Tensors on a device; views of one storage are views of one storage again."""
    copies: dict[int, Tensor] = {}
    moved = []
    for tensor in tensors:
        if tensor.device.type == device:
            moved.append(tensor)
            continue
        storage = tensor.untyped_storage()
        # The storage itself is what is looked up: empty ones have no address of their own.
        place = storage._cdata
        if place not in copies:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            copies[place] = flat.to(device)
        flat = copies[place].view(tensor.dtype)
        moved.append(flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()))
    return moved


@dataclass(frozen=True)
class Batch:
    """Arguments of one call, and the same requests as dense float64 tensors."""

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    page_table: Tensor
    cu_nodes: Tensor
    prefix_len: Tensor
    ancestors: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    visible: list[Tensor]

    @property
    def arguments(self) -> dict[str, Tensor]:
        names = (
            "q", "k_pool", "v_pool", "page_table", "cu_nodes", "prefix_len", "ancestors"
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def dense(self, scale: float | None = None) -> tuple[Tensor, Tensor]:
        """Masked softmax over whole dense matrices, float64: output and log-sum-exp of all rows."""
        rows, q_heads, dim = self.q.shape
        scale = dim**-0.5 if scale is None else scale
        out = torch.zeros(rows, q_heads, dim, dtype=torch.float64)
        lse = torch.full((rows, q_heads), -torch.inf, dtype=torch.float64)
        starts = self.cu_nodes.tolist()
        for index, (k, v, seen) in enumerate(
            zip(self.keys, self.values, self.visible, strict=True)
        ):
            first, last = starts[index], starts[index + 1]
            group = q_heads // k.shape[1]
            k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
            q = self.q[first:last].double().transpose(0, 1)
            scores = (q @ k.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
            out[first:last] = (torch.nan_to_num(scores.softmax(-1)) @ v).transpose(0, 1)
            lse[first:last] = scores.logsumexp(-1).T
        return out, lse


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """Makes batches: `make_batch(nodes, prefixes, page=, heads=, dim=, dtype=, mask=)`."""
    return random_batch


def random_batch(
    nodes: tuple[int, ...],
    prefixes: tuple[int, ...],
    *,
    seed: int = 0,
    page: int = 16,
    heads: tuple[int, int] = (4, 2),
    dim: int = 8,
    dtype: torch.dtype = torch.float64,
    padding: int = 3,
    mask: str = "random",
) -> Batch:
    """A batch of trees over randomly permuted pages."""
    torch.manual_seed(seed)
    q_heads, kv_heads = heads
    lengths = [n + p for n, p in zip(nodes, prefixes, strict=True)]
    counts = [-(-length // page) for length in lengths]
    rows, pages, table_width = sum(nodes) + padding, sum(counts) + 2, max(counts) + 1
    poison = torch.full((pages, page, kv_heads, dim), torch.nan, dtype=dtype)
    k_pool, v_pool = poison.clone(), poison.clone()
    order = torch.randperm(pages)
    # The last of the order is never given to a request: tables point to it past their end.
    table = torch.full((len(nodes), table_width), int(order[-1]), dtype=torch.int32)
    q = torch.randn(rows, q_heads, dim, dtype=torch.float64).to(dtype)
    q[sum(nodes) :] = torch.nan
    words = max(1, -(-max(nodes) // 64))
    ancestors = torch.full((rows, words), -1, dtype=torch.int64)
    keys, values, visible = [], [], []
    used, first = 0, 0
    for index, (count, prefix) in enumerate(zip(nodes, prefixes, strict=True)):
        mine = order[used : used + counts[index]]
        used += counts[index]
        table[index, : len(mine)] = mine.int()
        k, v = (torch.randn(lengths[index], kv_heads, dim, dtype=torch.float64).to(dtype)
                for _ in range(2))  # fmt: skip
        for row in range(lengths[index]):
            k_pool[mine[row // page], row % page] = k[row]
            v_pool[mine[row // page], row % page] = v[row]
        seen = _tree(count, mask)
        ancestors[first : first + count] = _words(seen, words)
        first += count
        keys.append(k.double())
        values.append(v.double())
        visible.append(torch.cat([torch.ones(count, prefix, dtype=torch.bool), seen], dim=1))
    starts = torch.tensor([0, *nodes], dtype=torch.int32).cumsum(0).int()
    prefix_len = torch.tensor(prefixes, dtype=torch.int32)
    return Batch(q, k_pool, v_pool, table, starts, prefix_len, ancestors, keys, values, visible)


def _tree(count: int, mask: str) -> Tensor:
    """What each row of a tree of one kind sees, [count, count]."""
    seen = torch.eye(count, dtype=torch.bool)
    for row in range(1, count):
        seen[row] |= seen[_PARENTS[mask](row)]
    if mask == "shuffled" and count:
        # The root stays first; children may come before their parents.
        order = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + torch.randperm(count - 1)])
        seen = seen[order][:, order]
    return seen


def _random_parent(row: int) -> int:
    return int(torch.randint(row, (1,)))


_PARENTS: dict[str, Callable[[int], int]] = {
    "random": _random_parent,
    "chain": lambda row: row - 1,
    "star": lambda row: 0,
    "binary": lambda row: (row - 1) // 2,
    "caterpillar": lambda row: row - 1 if row % 2 else max(row - 2, 0),
    "shuffled": _random_parent,
}


def _words(seen: Tensor, words: int) -> Tensor:
    packed = torch.zeros(seen.shape[0], words, dtype=torch.int64)
    for row, column in torch.nonzero(seen).tolist():
        word, bit = divmod(column, 64)
        # Bit 63 is the sign: as a signed number it is -2**63.
        packed[row, word] |= (1 << bit) if bit < 63 else -(1 << 63)
    return packed
