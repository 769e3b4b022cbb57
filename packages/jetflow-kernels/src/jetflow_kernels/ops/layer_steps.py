"""All operations of a layer in one object: the entry point of the group ``jetflow.layer_ops``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from jetflow_kernels.ops.gate import silu_mul
from jetflow_kernels.ops.norms import add_rms_norm, rms_norm
from jetflow_kernels.round.cache_write import norm_rope_kv_write


@dataclass(frozen=True, slots=True)
class LayerSteps:
    """The operations of a decoder layer beside its attention, on a CUDA device.

    None makes the host wait, and all can be captured in a CUDA graph. All but the product are the
    functions of the same name: what they take and refuse is said there.
    """

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    norm_rope_kv_write = staticmethod(norm_rope_kv_write)
    silu_mul = staticmethod(silu_mul)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Products of rows with a matrix, by torch, whatever their shape.

        Args:
            x: [T, in], any row stride.
            weight: [out, in] in the type of ``x``.
            bias: [out].

        Returns:
            [T, out].
        """
        return F.linear(x, weight, bias)
