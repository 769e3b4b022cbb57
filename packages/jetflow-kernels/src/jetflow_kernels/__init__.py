"""Attention and bookkeeping of one tree-speculative verify round, for engines with a paged cache.

This version holds the plain torch reference that every kernel has to agree with, and says what
runs on this machine. It holds no GPU kernel yet.
"""

from jetflow_kernels.availability import Backend, backends
from jetflow_kernels.reference import tree_attention_reference

__all__ = ["Backend", "backends", "tree_attention_reference"]
