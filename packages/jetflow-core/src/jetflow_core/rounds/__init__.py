"""Whole rounds on the device: static tensors, no host wait, one graph for each size."""

from jetflow_core.rounds.find import RoundBackend, round_ops_for
from jetflow_core.rounds.ops import AcceptedBatch, RoundOps, TopTokens, TreeBatch
from jetflow_core.rounds.torch_ops import TorchRoundOps

__all__ = [
    "AcceptedBatch",
    "RoundBackend",
    "RoundOps",
    "TopTokens",
    "TorchRoundOps",
    "TreeBatch",
    "round_ops_for",
]
