"""vLLM's CPU attention, and for a tree's rows the reference that knows who sees whom.

Chains and prompts are causal, so vLLM's own kernel does them; what it wrote for rows of trees with
branches is replaced.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl

from jetflow_serve.paged_attention import attend_tree
from jetflow_serve.tree_rows import TreeRows

__all__ = ["NAME", "TreeAttentionBackend", "TreeAttentionImpl", "TreeRows"]

NAME = "jetflow_serve.engine.attention.TreeAttentionBackend"


class TreeAttentionBackend(CPUAttentionBackend):
    """vLLM's CPU backend with our implementation."""

    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        """The class of a layer's attention."""
        return TreeAttentionImpl


class TreeAttentionImpl(CPUAttentionBackendImpl):
    """Attention of one layer; the metadata of a step with trees carries them as ``trees``."""

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """As vLLM's, rows of trees corrected; returns ``output``."""
        result: Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, output,
            output_scale, output_block_scale,
        )  # fmt: skip
        for tree in getattr(attn_metadata, "trees", ()):
            attended = attend_tree(
                query[tree.rows],
                kv_cache,
                attn_metadata.block_table[tree.index],
                tree.context,
                tree.sight,
                self.scale,
            )
            output[tree.rows] = attended.view_as(output[tree.rows])
        return result
