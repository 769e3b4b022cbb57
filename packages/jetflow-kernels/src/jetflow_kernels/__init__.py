"""Attention and bookkeeping of one tree-speculative verify round, for engines with a paged cache.

Tree attention is here in Triton, in CUDA C++ and through flash-attn 4 for the GPU, and as the plain
torch reference that they have to agree with. ``backends`` says what runs on this machine.
"""

from jetflow_kernels.attention.op import tree_attention, tree_attention_backend
from jetflow_kernels.attention.prefill import prefill_attention
from jetflow_kernels.availability import Backend, backends
from jetflow_kernels.prefill_reference import prefill_attention_reference
from jetflow_kernels.reference import tree_attention_reference

__all__ = [
    "Backend",
    "backends",
    "prefill_attention",
    "prefill_attention_reference",
    "tree_attention",
    "tree_attention_backend",
    "tree_attention_reference",
]
