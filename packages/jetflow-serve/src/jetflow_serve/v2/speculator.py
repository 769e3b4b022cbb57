"""vLLM's DFlash speculator of Model Runner V2, with our own pass of the head."""

from __future__ import annotations

from typing import Any

import torch
from jetflow_tree import Candidates
from torch import Tensor, nn
from vllm.forward_context import set_forward_context
from vllm.v1.worker.gpu.attn_utils import build_attn_metadata
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

from jetflow_serve.blocks import Blocks
from jetflow_serve.context_rows import context_rows
from jetflow_serve.drafts import Ask, Picked
from jetflow_serve.engine import drafting
from jetflow_serve.engine.draft_model import JetFlowDraftModel
from jetflow_serve.engine.requests import choice_of
from jetflow_serve.v2.step import Shared


class TreeSpeculator(DFlashSpeculator):
    """Drafts trees; ``shared`` and ``target_state_cls`` are put in place by the runner."""

    model: JetFlowDraftModel
    shared: Shared
    target_state_cls: type[Any]
    """What keeps the target's state."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        """As vLLM's; the target is here before anybody asks it which class keeps its state."""
        target_model.get_model_state_cls = lambda: self.target_state_cls
        loaded: nn.Module = super().load_draft_model(target_model, target_attn_layer_names)
        return loaded

    @torch.inference_mode()
    def propose(
        self,
        input_batch: Any,
        attn_metadata: Any,
        slot_mappings: Any,
        last_hidden_states: Any,
        aux_hidden_states: Any,
        num_sampled: Tensor,
        num_rejected: Tensor,
        last_sampled: Tensor,
        next_prefill_tokens: Any,
        temperature: Any,
        seeds: Any,
        dp_sync_state: Any = None,
        dummy_run: bool = False,
        skip_attn_for_dummy_run: bool = False,
        mm_inputs: Any = None,
        is_profile: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> Tensor:
        """int64 ``[R, nodes]``: each request's new tree, 0 after its last node."""
        count = input_batch.num_reqs
        self.draft_tokens[:count] = 0
        if dummy_run:
            return self.draft_tokens[:count]
        shared, head = self.shared, self.model.head.config
        rows = context_rows(shared.scheduled, shared.contexts, shared.staged, shared.kept)
        features = drafting.features_in_order(
            aux_hidden_states, head.target_layer_ids, input_batch.num_tokens
        )
        slots = self.block_tables.slot_mappings[self.draft_kv_cache_group_id]
        last = drafting.observe(self.model, features, rows, slots)
        nodes = num_speculative_tokens
        nodes = self.num_speculative_steps if nodes is None else nodes
        picked = self._picked(input_batch, num_sampled, last_sampled)
        asks = shared.drafts.plan(picked, nodes)
        grown = shared.drafts.grow(asks, self.draft(asks, last, count))
        table = torch.zeros(count, self.num_speculative_steps, dtype=self.draft_tokens.dtype)
        for ask, tokens in zip(asks, grown, strict=True):
            table[ask.index, : len(tokens)] = torch.tensor(tokens)
        self.draft_tokens[:count] = table
        return self.draft_tokens[:count]

    def draft(self, asks: list[Ask], last: Tensor, count: int) -> list[Candidates]:
        """As ``drafting.draft``, for a batch of ``count`` requests."""
        group = self.draft_kv_cache_group_id
        tables = self.block_tables.input_block_tables[group][:count]
        block = self.block_tables.block_sizes[group]
        return drafting.draft(self.model, asks, last, tables, block, self._run_blocks)

    def _picked(self, batch: Any, num_sampled: Tensor, last_sampled: Tensor) -> list[Picked]:
        shared = self.shared
        roots = last_sampled[batch.idx_mapping].flatten().tolist()
        counts = num_sampled.tolist()
        found = []
        for index, request in enumerate(batch.req_ids):
            shared.drafts.forget(request)
            if not counts[index]:
                # Its prompt is not finished: no token of it was picked.
                continue
            place = shared.contexts[index] + shared.scheduled[index]
            if (entry := shared.staged[index]) is not None:
                place = entry.context + 1 + len(shared.kept[index].nodes)
            params = shared.params[request]
            choice, temperature = choice_of(params), params.temperature
            found.append(Picked(request, index, roots[index], place, choice, temperature))
        return found

    def _run_blocks(self, rows: Tensor, blocks: Blocks, tables: Tensor) -> Tensor:
        groups = len(self.kv_cache_config.kv_cache_groups)
        counts = blocks.starts.diff()
        metadata = build_attn_metadata(
            attn_groups=self.attn_groups,
            num_reqs=len(counts),
            num_tokens=int(blocks.starts[-1]),
            query_start_loc_gpu=blocks.starts,
            query_start_loc_cpu=blocks.starts,
            max_query_len=int(counts.max()),
            seq_lens=blocks.lengths,
            max_seq_len=int(blocks.lengths.max()),
            block_tables=[tables] * groups,
            slot_mappings=blocks.slots.expand(groups, -1),
            kv_cache_config=self.kv_cache_config,
            positions=blocks.positions,
            causal=self.model.head.config.causal,
        )
        slots = {name: blocks.slots for name in metadata}
        with set_forward_context(
            metadata, self.vllm_config, num_tokens=rows.shape[0], slot_mapping=slots
        ):
            hidden: Tensor = self.model(None, blocks.positions, rows)
        return hidden
