"""The attention of a target, as transformers calls it."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor
from transformers import AttentionInterface

IMPLEMENTATION = "jetflow"
"""The name under which transformers finds `attend`."""


class Layout(Protocol):
    """Knows whose the rows of a pass are, what they see, and where their keys go."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Store the new keys and values and attend over each slot's own.

        Args:
            layer: Which layer of the cache.
            query: `[heads, rows, head_dim]`, the rows of all slots packed.
            key: `[kv_heads, rows, head_dim]`, positions applied.
            value: Same shape as `key`.
            scaling: Factor of the scores.

        Returns:
            `[rows, heads, head_dim]`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """All that one call of the target needs beside its rows, handed down by transformers.

    Attributes:
        layout: Where keys and values are read and written.
        outputs: Filled by the pass: a tapped layer's own output `[rows, hidden]`.
    """

    layout: Layout
    outputs: dict[int, Tensor] = field(default_factory=dict)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    jetflow: Pass | None = None,
    **_unused: object,
) -> tuple[Tensor, None]:
    """Attend as the pass says.

    Args:
        module: The attention layer; its `layer_idx` picks the layer of the cache.
        query: `[1, heads, rows, head_dim]`.
        key: `[1, kv_heads, rows, head_dim]`, positions applied.
        value: Same shape as `key`.
        attention_mask: Must be None: what a row sees is the pass's business.
        scaling: Factor of the scores.
        jetflow: The pass.

    Returns:
        `[1, rows, heads, head_dim]`, and None for the attention weights.

    Raises:
        RuntimeError: The model was called other than through a session.
    """
    if jetflow is None or attention_mask is not None:
        raise RuntimeError(
            "this model's attention belongs to a JetFlow target: run it through a session, "
            "and load another copy for anything else"
        )
    mixed = jetflow.layout.attend(module.layer_idx, query[0], key[0], value[0], scaling)
    return mixed[None], None


AttentionInterface.register(IMPLEMENTATION, attend)
