"""vLLM's attention on a GPU, and for the rows of trees the one that knows who sees whom.

FlashAttention and, for float32, vLLM's Triton attention do long pieces of prompts and the head's
layers. Rows that ``LeadingRows`` names are JetFlow's: with them the target's rows of trees, of
chains and of plain decoding are computed by one kernel, so that they round alike.
"""

from __future__ import annotations

from typing import Any

from jetflow_core.rounds import RoundOps
from torch import Tensor
from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend, FlashAttentionImpl
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend, TritonAttentionImpl

from jetflow_serve.leading_rows import LeadingRows
from jetflow_serve.packed_attention import attend_leading

FLASH = "jetflow_serve.cuda.attention.TreeFlashBackend"
TRITON = "jetflow_serve.cuda.attention.TreeTritonBackend"


class TreeRows:
    """The part of both implementations that is ours; stands before vLLM's among the bases."""

    ops: RoundOps
    """Put in place by the worker before the first step."""
    scale: float

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
        """As vLLM's; the metadata of a step of the target carries ``LeadingRows``."""
        leading: LeadingRows | None = getattr(attn_metadata, "leading", None)
        if leading is None or leading.rows < attn_metadata.num_actual_tokens:
            theirs: Any = super()
            theirs.forward(
                layer, query, key, value, kv_cache, attn_metadata, output,
                output_scale, output_block_scale,
            )  # fmt: skip
        if leading is not None and leading.rows:
            table = attn_metadata.block_table
            attend_leading(self.ops, query, kv_cache, table, leading, self.scale, output)
        return output


class TreeFlashImpl(TreeRows, FlashAttentionImpl):
    """Attention of one layer in a 16-bit type."""


class TreeTritonImpl(TreeRows, TritonAttentionImpl):
    """Attention of one layer in float32."""


class TreeFlashBackend(FlashAttentionBackend):
    """vLLM's FlashAttention backend with our implementation."""

    @staticmethod
    def get_impl_cls() -> type[FlashAttentionImpl]:
        """The class of a layer's attention."""
        return TreeFlashImpl


class TreeTritonBackend(TritonAttentionBackend):
    """vLLM's Triton backend with our implementation."""

    @staticmethod
    def get_impl_cls() -> type[TritonAttentionImpl]:
        """The class of a layer's attention."""
        return TreeTritonImpl
