"""Decoder stacks of the fast engine: fused weights over packed rows and paged keys and values."""

from jetflow_core.stacks.find import LayerBackend, layer_ops_for
from jetflow_core.stacks.loading import load_stack, random_stack, stack_of_model
from jetflow_core.stacks.named import NAMED_SHAPES, named_shape
from jetflow_core.stacks.ops import Attend, LayerOps
from jetflow_core.stacks.passes import KVPools, PackedRows
from jetflow_core.stacks.rope import Frequencies, RopeTables
from jetflow_core.stacks.shape import ExpertShape, StackShape
from jetflow_core.stacks.stack import DecoderStack
from jetflow_core.stacks.torch_attention import TorchTreeAttention
from jetflow_core.stacks.torch_ops import TorchOps
from jetflow_core.stacks.traffic import PassTraffic, bytes_per_pass
from jetflow_core.stacks.weights import DenseWeights, ExpertWeights, LayerWeights, StackWeights

__all__ = [
    "NAMED_SHAPES",
    "Attend",
    "DecoderStack",
    "DenseWeights",
    "ExpertShape",
    "ExpertWeights",
    "Frequencies",
    "KVPools",
    "LayerBackend",
    "LayerOps",
    "LayerWeights",
    "PackedRows",
    "PassTraffic",
    "RopeTables",
    "StackShape",
    "StackWeights",
    "TorchOps",
    "TorchTreeAttention",
    "bytes_per_pass",
    "layer_ops_for",
    "load_stack",
    "named_shape",
    "random_stack",
    "stack_of_model",
]
