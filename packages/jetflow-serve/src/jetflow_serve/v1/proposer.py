"""vLLM's DFlash proposer of Model Runner V1, with our own pass of the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jetflow_tree import Candidates
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.dflash import DFlashProposer

from jetflow_serve.blocks import Blocks
from jetflow_serve.context_rows import ContextRows
from jetflow_serve.drafts import Ask
from jetflow_serve.engine import drafting
from jetflow_serve.engine.draft_model import JetFlowDraftModel


class TreeProposer(DFlashProposer):
    """vLLM's DFlash proposer, of which loading and metadata are kept and drafting is ours.

    Args:
        vllm_config: vLLM's configuration.
        device: where the head runs.
        runner: the model runner.
    """

    model: JetFlowDraftModel

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any) -> None:
        super().__init__(vllm_config, device, runner)

    def dummy_run(self, *args: Any, **options: Any) -> None:
        """Nothing: on a CPU no memory is profiled and no graph is captured."""

    @torch.inference_mode()
    def observe(self, features: Tensor, rows: ContextRows, slot_mapping: Tensor) -> Tensor:
        """As ``drafting.observe``."""
        return drafting.observe(self.model, features, rows, slot_mapping)

    @torch.inference_mode()
    def draft(
        self, asks: Sequence[Ask], last: Tensor, common: CommonAttentionMetadata
    ) -> list[Candidates]:
        """As ``drafting.draft``; ``common`` is the step's metadata."""

        def run(rows: Tensor, blocks: Blocks, tables: Tensor) -> Tensor:
            return self._run(rows, blocks, _metadata(common, blocks, tables, self._causal))

        tables = common.block_table_tensor
        return drafting.draft(self.model, asks, last, tables, self.block_size, run)

    @property
    def _causal(self) -> bool:
        return self.model.head.config.causal

    def _run(self, rows: Tensor, blocks: Blocks, metadata: CommonAttentionMetadata) -> Tensor:
        _, per_layer = self.build_per_group_and_layer_attn_metadata(metadata)
        slots = {name: blocks.slots for name in per_layer}
        with set_forward_context(
            per_layer, self.vllm_config, num_tokens=rows.shape[0], slot_mapping=slots
        ):
            hidden: Tensor = self.model(None, blocks.positions, rows)
        return hidden


def _metadata(
    common: CommonAttentionMetadata, blocks: Blocks, tables: Tensor, causal: bool
) -> CommonAttentionMetadata:
    counts = blocks.starts.diff()
    return replace(
        common,
        query_start_loc=blocks.starts,
        query_start_loc_cpu=blocks.starts,
        seq_lens=blocks.lengths,
        seq_lens_cpu_upper_bound=blocks.lengths,
        num_reqs=len(counts),
        num_actual_tokens=int(blocks.starts[-1]),
        max_query_len=int(counts.max()),
        max_seq_len=int(blocks.lengths.max()),
        block_table_tensor=tables,
        slot_mapping=blocks.slots,
        causal=causal,
        positions=blocks.positions,
        is_prefilling=None,
    )
