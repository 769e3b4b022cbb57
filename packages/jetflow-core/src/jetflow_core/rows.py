"""What one pass of the target gives for each row."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowOutput:
    """Logits and tapped features of some rows of one slot.

    Attributes:
        logits: `[N, vocab]`, the target's type and device: row i holds the logits of the token
            that follows row i on its own path. `[0, vocab]` after a prefill, which needs none.
        features: `[N, taps * hidden]`, same type and device: the outputs of the tapped layers,
            concatenated in tap order. `[N, 0]` when the target has no taps.
    """

    logits: Tensor
    features: Tensor
