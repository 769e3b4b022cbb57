"""The products of a draft head's rounds, told to the operations before any round."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from jetflow_core.rounds.head_weights import HeadLayerWeights
from jetflow_core.stacks import LayerOps


def prepare_head(
    ops: LayerOps,
    layers: Sequence[HeadLayerWeights],
    lm_head: Tensor,
    fuse: Tensor,
    *,
    block: int,
    depth: int,
    slots: int,
) -> None:
    """Tells of the products with every number of requests that a captured round may have.

    Args:
        ops: the steps of a layer.
        layers: the head's.
        lm_head: ``[vocab, hidden]``.
        fuse: ``[hidden, taps * hidden]``, what committed features go through.
        block: rows of a request's block.
        depth: rows of a request that candidates are made of.
        slots: requests held at once.
    """
    requests = sorted({min(1 << power, slots) for power in range(slots.bit_length() + 1)})
    plain = [matrix for each in layers for matrix in (each.qkv, each.output, each.down)]
    ops.prepare([each * block for each in requests], plain, [each.gate_up for each in layers])
    ops.prepare([each * depth for each in requests], [lm_head])
    committed = [fuse, *(each.context for each in layers)]
    ops.prepare([each * (depth + 1) for each in requests], committed)
