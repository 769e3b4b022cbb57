"""Other kernels that can compute attention over a tree, each timed only where it is installed.

Each gets its inputs the way it likes them, prepared before the clock starts: keys and values dense
for the first two, pages for the others; masks as booleans, as blocks or as packed bits. None is a
dependency of this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One of them."""

    enter: Callable[[Arguments], Callable[[], Tensor]]
    """Takes the arguments of ``tree_attention``, all trees of one size and all prefixes of one
    length, and returns what computes the rows [T, Hq, D]."""
    module: str
    """What has to be found for it to run."""
    package: str
    """Whose version is told."""

    def version(self) -> str | None:
        """The installed version, None if it is absent."""
        parent = self.module.partition(".")[0]
        if find_spec(parent) is None or find_spec(self.module) is None:
            return None
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return "unknown"


def versions() -> dict[str, str]:
    """Every peer's installed version, or ``absent``."""
    return {name: peer.version() or "absent" for name, peer in PEERS.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """The requests of one call side by side."""

    q: Tensor
    """[B, Hq, N, D]."""
    k: Tensor
    """[B, Hkv, L, D], L = prefix + N."""
    v: Tensor
    seen: Tensor
    """[B, 1, N, L] bool."""
    prefix: int

    @classmethod
    def of(cls, arguments: Arguments) -> Dense:
        """Gathers pages and unpacks words."""
        q, table = arguments["q"], arguments["page_table"]
        requests, prefix = table.shape[0], int(arguments["prefix_len"][0])
        rows = len(q) // requests
        length = prefix + rows
        k, v = (
            arguments[name][table.long()].flatten(1, 2)[:, :length].transpose(1, 2).contiguous()
            for name in ("k_pool", "v_pool")
        )
        shifts = torch.arange(64, device=q.device)
        bits = ((arguments["ancestors"][:, :, None] >> shifts) & 1).flatten(1)[:, :rows].bool()
        seen = torch.ones(requests, 1, rows, length, dtype=torch.bool, device=q.device)
        seen[:, 0, :, prefix:] = bits.view(requests, rows, rows)
        queries = q.view(requests, rows, *q.shape[1:]).transpose(1, 2).contiguous()
        return cls(queries, k, v, seen, prefix)


def _rows(out: Tensor) -> Tensor:
    return out.transpose(1, 2).flatten(0, 1)


def sdpa(arguments: Arguments) -> Callable[[], Tensor]:
    """Torch's own attention with a boolean mask, key heads shared by its ``enable_gqa``."""
    given = Dense.of(arguments)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: _rows(attend(given.q, given.k, given.v, attn_mask=given.seen, enable_gqa=True))


def sdpa_repeated(arguments: Arguments) -> Callable[[], Tensor]:
    """The same with key heads repeated beforehand, which opens its memory-efficient kernel."""
    given = Dense.of(arguments)
    group = given.q.shape[1] // given.k.shape[1]
    k, v = (each.repeat_interleave(group, dim=1) for each in (given.k, given.v))
    # Rows of the mask have to begin at multiples of 16 bytes for that kernel.
    bias = torch.zeros(given.seen.shape, dtype=given.q.dtype, device=given.q.device)
    bias = bias.masked_fill(~given.seen, -torch.inf)
    padded = torch.nn.functional.pad(bias, (0, -bias.shape[-1] % 8))[..., : bias.shape[-1]]
    mask = padded.expand(-1, given.q.shape[1], -1, -1)
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: _rows(attend(given.q, k, v, attn_mask=mask))


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    # One shape after the other is timed; each is to be compiled for itself.
    torch._dynamo.config.recompile_limit = 64
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=False)
    return compiled


def flex(arguments: Arguments) -> Callable[[], Tensor]:
    """FlexAttention, compiled, with a block mask made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask

    given = Dense.of(arguments)
    requests, _, rows, length = given.seen.shape
    seen = given.seen[:, 0]

    def sees(request: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return seen[request, row, column]

    blocks = create_block_mask(sees, requests, None, rows, length, device=str(seen.device))
    attend = _compiled_flex()
    return lambda: _rows(attend(given.q, given.k, given.v, block_mask=blocks, enable_gqa=True))


def flash_attention_4(arguments: Arguments) -> Callable[[], Tensor]:
    """flash-attn 4 with a mask function that reads a boolean matrix, over dense keys."""
    cute, cutlass = import_module("cutlass.cute"), import_module("cutlass")
    forward = import_module("flash_attn.cute.interface")._flash_attn_fwd
    to_vector = import_module("flash_attn.cute.utils").scalar_to_ssa
    given = Dense.of(arguments)
    seen = given.seen[:, 0].to(torch.int32).contiguous()

    @cute.jit
    def sees(request: Any, head: Any, row: Any, column: Any, lengths: Any, tensors: Any) -> Any:
        last_row, last_column = tensors[0].shape[1] - 1, tensors[0].shape[2] - 1
        at_row = row[0] if row[0] < last_row else last_row
        at_column = column[0] if column[0] < last_column else last_column
        return to_vector(tensors[0][request[0], at_row, at_column] != 0, cutlass.Boolean)

    q, k, v = (each.transpose(1, 2).contiguous() for each in (given.q, given.k, given.v))
    return lambda: forward(q, k, v, mask_mod=sees, aux_tensors=[seen])[0].flatten(0, 1)


def flashinfer(arguments: Arguments) -> Callable[[], Tensor]:
    """FlashInfer's paged prefill with a custom mask; its plan is made beforehand."""
    wrapper_of = import_module("flashinfer").BatchPrefillWithPagedKVCacheWrapper
    q, pool, table = arguments["q"], arguments["k_pool"], arguments["page_table"]
    requests, page = table.shape[0], pool.shape[1]
    seen = Dense.of(arguments).seen[:, 0]
    length = seen.shape[-1]
    used = -(-length // page)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=q.device)
    wrapper = wrapper_of(workspace, "NHD")
    starts = torch.arange(0, requests * used + 1, used, dtype=torch.int32)
    last = torch.full((requests,), length - (used - 1) * page, dtype=torch.int32)
    wrapper.plan(
        arguments["cu_nodes"], starts.to(q.device), table[:, :used].flatten().contiguous(),
        last.to(q.device), q.shape[1], pool.shape[2], q.shape[2], page,
        custom_mask=seen.flatten(), q_data_type=q.dtype, kv_data_type=q.dtype,
    )  # fmt: skip
    return lambda: wrapper.run(q, (pool, arguments["v_pool"]))


PEERS = {
    "sdpa": Peer(enter=sdpa, module="torch", package="torch"),
    "sdpa-repeated": Peer(enter=sdpa_repeated, module="torch", package="torch"),
    "flex": Peer(enter=flex, module="torch.nn.attention.flex_attention", package="torch"),
    "flash-attn-4": Peer(enter=flash_attention_4, module="flash_attn.cute", package="flash-attn-4"),
    "flashinfer": Peer(enter=flashinfer, module="flashinfer", package="flashinfer-python"),
}
