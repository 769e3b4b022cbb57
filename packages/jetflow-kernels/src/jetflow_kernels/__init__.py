"""Attention and bookkeeping of one tree-speculative verify round, for engines with a paged cache.

Tree attention is here three times: in Triton and in CUDA C++ for the GPU, and as the plain torch
reference that they have to agree with. ``backends`` says what runs on this machine.
"""

from jetflow_kernels.attention.op import tree_attention, tree_attention_backend
from jetflow_kernels.availability import Backend, backends
from jetflow_kernels.reference import tree_attention_reference

__all__ = [
    "Backend",
    "backends",
    "tree_attention",
    "tree_attention_backend",
    "tree_attention_reference",
]
