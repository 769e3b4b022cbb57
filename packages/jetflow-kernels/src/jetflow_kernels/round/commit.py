"""The end of a round: accepted cache rows and features to where the next round looks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    power_of_two,
)

MOST_STEPS = 64
"""Rows of a committed path, the root included."""
_BLOCK = 512


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CachePools:
    """The keys and values of all layers, with their addresses on the device.

    Make it once with ``CachePools.of``, outside of any graph: it copies the addresses to the
    device. The pools must stay where they are as long as it is used.
    """

    pools: tuple[Tensor, ...]
    """[pages, page, Hkv, D] each, keys and values of each layer in any order; one shape, one set
    of strides, one type, one device."""
    addresses: Tensor
    """[number of pools] int64."""

    @classmethod
    def of(cls, pools: Sequence[Tensor]) -> CachePools:
        """Gathers pools.

        Args:
            pools: [pages, page, Hkv, D] each, of a type of 1, 2, 4 or 8 bytes; any strides but
                that of D, which is 1, and starts that are multiples of 16 bytes.

        Raises:
            ValueError: there is none, or they differ in shape, strides, type or device, or one
                is not laid out as said.
        """
        if not pools:
            raise ValueError("pools must hold at least 1 tensor, got 0")
        first = pools[0]
        expect("pools[0]", first, (-1, -1, -1, -1), (first.dtype,), first.device)
        if min(first.shape[1:]) < 1 or first.stride(3) != 1:
            raise ValueError(
                f"pools[0] must be [pages, page, Hkv, D] without gaps in D, got shape "
                f"{list(first.shape)} with strides {first.stride()}"
            )
        for index, pool in enumerate(pools):
            name = f"pools[{index}]"
            expect(name, pool, first.shape, (first.dtype,), first.device)
            if pool.stride() != first.stride():
                raise ValueError(
                    f"{name} must have the strides {first.stride()} of pools[0], "
                    f"got {pool.stride()}"
                )
            if pool.data_ptr() % 16:
                raise ValueError(
                    f"{name} must start at a multiple of 16 bytes, got {pool.data_ptr()}"
                )
        places = torch.tensor([pool.data_ptr() for pool in pools], dtype=torch.int64)
        return cls(pools=tuple(pools), addresses=places.to(first.device))


def commit_path(
    cache: CachePools,
    page_table: Tensor,
    prefix_len: Tensor,
    rows: Tensor,
    features: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Moves the accepted rows of all layers behind their prefix and gathers their features.

    Cache row ``prefix_len + rows[i]`` of a request goes to ``prefix_len + i``, in every pool, in
    one launch. All reads come before all writes, so the rows may overlap. ``prefix_len`` is left
    alone: afterwards it has to grow by the accepted rows and the root.

    Args:
        cache: the pools, changed in place.
        page_table: [R, max pages] int32; requests share no page that is written.
        prefix_len: [R] int32, committed rows before each tree.
        rows: [R, S] int32, S from 1 to 64: the rows to keep, as ``accept_walk`` gives them: the
            root's row 0, then rising rows, then -1. All lie in pages of the table.
        features: [R, B, F] floating, what the target's tapped layers say at every row of the
            trees; the last axis without gaps. F may be 0.
        out: [R, S, F], type of ``features``, contiguous, to be written instead of a new tensor.

    Returns:
        [R, S, F]: the features of the kept rows, 0 behind the end of a path.

    Raises:
        ValueError: a shape, type or device is not as said, or it is not a CUDA device.
    """
    result = _check(cache, page_table, prefix_len, rows, features, out)
    if rows.shape[0]:
        _commit_path(
            list(cache.pools), cache.addresses, page_table, prefix_len, rows, features, result
        )
    return result


def commit_path_reference(
    cache: CachePools,
    page_table: Tensor,
    prefix_len: Tensor,
    rows: Tensor,
    features: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """What ``commit_path`` does, on any device, one request at a time through a copy.

    Args:
        cache: see there.
        page_table: see there.
        prefix_len: see there.
        rows: see there.
        features: see there.
        out: see there.

    Returns:
        The features of the kept rows.

    Raises:
        ValueError: as there, except that any device will do.
    """
    result = _check(cache, page_table, prefix_len, rows, features, out).zero_()
    page = cache.pools[0].shape[1]
    for request in range(rows.shape[0]):
        kept = rows[request][rows[request] >= 0].long()
        result[request, : len(kept)] = features[request, kept]
        steps = torch.arange(len(kept), device=rows.device)
        source, target = kept + prefix_len[request], steps + prefix_len[request]
        table = page_table[request].long()
        for pool in cache.pools:
            values = pool[table[source // page], source % page].clone()
            pool[table[target // page], target % page] = values
    return result


@torch.library.custom_op("jetflow_kernels::commit_path", mutates_args=("pools", "out"))
def _commit_path(
    pools: list[Tensor],
    addresses: Tensor,
    page_table: Tensor,
    prefix_len: Tensor,
    rows: Tensor,
    features: Tensor,
    out: Tensor,
) -> None:
    import triton.language as tl

    from jetflow_kernels.round.commit_kernel import commit_kernel

    requests, steps = rows.shape
    _, page, heads, dim = pools[0].shape
    width = features.shape[2]
    blocks = -(-heads * dim // _BLOCK)
    element = {1: tl.int8, 2: tl.int16, 4: tl.int32, 8: tl.int64}[pools[0].element_size()]
    grid = (requests, len(pools) * blocks + -(-width // _BLOCK))
    with device_of(commit_kernel, rows):
        commit_kernel[grid](
            addresses, page_table, prefix_len, rows, features, out,
            len(pools) * blocks, blocks, page_table.stride(0), steps, heads * dim, page,
            *pools[0].stride()[:3], *features.stride()[:2], width,
            ELEMENT=element, HEAD_DIM=dim, STEPS=power_of_two(steps), BLOCK=_BLOCK, num_warps=4,
        )  # fmt: skip


@_commit_path.register_fake
def _(
    pools: list[Tensor],
    addresses: Tensor,
    page_table: Tensor,
    prefix_len: Tensor,
    rows: Tensor,
    features: Tensor,
    out: Tensor,
) -> None:
    """The results are written in place; nothing is made."""


def _check(
    cache: CachePools,
    page_table: Tensor,
    prefix_len: Tensor,
    rows: Tensor,
    features: Tensor,
    out: Tensor | None,
) -> Tensor:
    device = cache.pools[0].device
    expect("page_table", page_table, (-1, -1), (torch.int32,), device)
    requests = page_table.shape[0]
    if page_table.stride(1) != 1:
        raise ValueError(f"page_table must have no gaps, got strides {page_table.stride()}")
    expect("prefix_len", prefix_len, (requests,), (torch.int32,), device)
    expect("rows", rows, (requests, -1), (torch.int32,), device)
    expect_contiguous("rows", rows)
    steps = rows.shape[1]
    expect_range("the steps S of rows", steps, 1, MOST_STEPS)
    expect("features", features, (requests, -1, -1), (features.dtype,), device)
    width = features.shape[2]
    if not features.is_floating_point() or (width > 1 and features.stride(2) != 1):
        raise ValueError(
            f"features must be floating without gaps in F, got {features.dtype} with strides "
            f"{features.stride()}"
        )
    if out is None:
        return torch.empty(requests, steps, width, dtype=features.dtype, device=device)
    expect("out", out, (requests, steps, width), (features.dtype,), device)
    expect_contiguous("out", out)
    return out
