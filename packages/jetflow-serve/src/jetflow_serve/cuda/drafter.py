"""JetFlow's head on the device, its keys and values in vLLM's caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jetflow_core.head.model import DraftHead
from jetflow_core.rounds import CommittedRows, HeadRound, RoundOps
from jetflow_core.stacks import LayerOps
from torch import Tensor

from jetflow_serve.packed_cache import packed_pools

_PIECE = 256
"""Rows of one request that a step of a round takes."""


class Unmeasured:
    """The operations of a layer, with torch's products: none is measured when an engine starts.

    Args:
        ops: the operations.
    """

    def __init__(self, ops: LayerOps) -> None:
        self._ops = ops

    def prepare(self, *_: Any) -> None:
        """Nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)


def head_on_device(
    head: DraftHead,
    embedding: Tensor,
    lm_head: Tensor,
    *,
    ops: RoundOps,
    layer_ops: LayerOps,
    places: int,
    depth: int,
    requests: int,
    page: int,
) -> HeadRound:
    """A drafter of which only the caches are missing; see ``use_caches``.

    Args:
        head: weights, on the device.
        embedding: the target's ``[vocab, hidden]``.
        lm_head: the target's output matrix ``[vocab, hidden]``.
        ops: the steps of a round.
        layer_ops: the steps of a layer.
        places: most rows of a request.
        depth: depths to draft.
        requests: requests at a time.
        page: rows of a cache block.
    """
    unmeasured: Any = Unmeasured(layer_ops)
    drafter = HeadRound(
        head, embedding, lm_head, ops=ops, layer_ops=unmeasured, context=places, depth=depth
    )
    drafter.allocate(pages=1, page=page, slots=requests)
    return drafter


def use_caches(drafter: HeadRound, caches: Sequence[Tensor]) -> None:
    """Puts the head's keys and values into vLLM's caches, one for each of its layers."""
    pools: Any = [packed_pools(cache) for cache in caches]
    drafter.pools = pools


def absorb_piecewise(
    drafter: HeadRound, slot: Tensor, table: Tensor, start: Tensor, features: Tensor
) -> None:
    """Takes in many rows of one request.

    Args:
        drafter: the head.
        slot: int64 ``[1]``.
        table: int32 ``[1, blocks]``.
        start: int32 ``[1]``, the position of the first.
        features: ``[rows, F]``.
    """
    for first in range(0, features.shape[0], _PIECE):
        piece = features[first : first + _PIECE]
        drafter.absorb(
            CommittedRows(
                slots=slot,
                page_table=table,
                starts=start + first,
                counts=torch.full_like(start, piece.shape[0]),
                features=piece[None],
            )
        )
