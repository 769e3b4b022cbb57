"""What JetFlow's engine asks of a CUDA device: the steps of a round, the operations of a layer."""

from jetflow_kernels.ops.gate import silu_mul, silu_mul_reference
from jetflow_kernels.ops.layer_steps import LayerSteps
from jetflow_kernels.ops.linear import (
    gate_up_silu,
    gate_up_silu_reference,
    linear,
    linear_reference,
)
from jetflow_kernels.ops.linear_choice import Products
from jetflow_kernels.ops.norms import (
    add_rms_norm,
    add_rms_norm_reference,
    rms_norm,
    rms_norm_reference,
)
from jetflow_kernels.ops.round_steps import RoundSteps

__all__ = [
    "LayerSteps",
    "Products",
    "RoundSteps",
    "add_rms_norm",
    "add_rms_norm_reference",
    "gate_up_silu",
    "gate_up_silu_reference",
    "layer_steps",
    "linear",
    "linear_reference",
    "rms_norm",
    "rms_norm_reference",
    "round_steps",
    "silu_mul",
    "silu_mul_reference",
]

round_steps = RoundSteps()
"""The entry point ``triton`` of the group ``jetflow.round_ops``."""
layer_steps = LayerSteps()
"""The entry point ``triton`` of the group ``jetflow.layer_ops``."""
