"""vLLM's DFlash speculator of Model Runner V2, with the head and the trees on the device."""

from __future__ import annotations

from typing import Any

import torch
from jetflow_core.rounds import CommittedRows, DraftInputs, HeadRound
from jetflow_core.sampling import SamplingParams
from torch import Tensor, nn
from vllm.v1.worker.gpu.spec_decode.dflash.speculator import DFlashSpeculator

from jetflow_serve.cuda.drafter import absorb_piecewise
from jetflow_serve.cuda.lines import only_best
from jetflow_serve.cuda.plans import Plan, plan_drafts
from jetflow_serve.cuda.step import DeviceStep
from jetflow_serve.engine.draft_model import JetFlowDraftModel
from jetflow_serve.engine.drafting import features_in_order


class CudaTreeSpeculator(DFlashSpeculator):
    """Drafts trees; ``step`` and the next two are put in place by the runner."""

    model: JetFlowDraftModel
    step: DeviceStep
    target_state_cls: type[Any]
    """What keeps the target's state."""
    chains_only: bool
    drafter: HeadRound
    """Known when there are caches."""

    def load_draft_model(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        """As vLLM's; the target is here before anybody asks it which class keeps its state."""
        target_model.get_model_state_cls = lambda: self.target_state_cls
        loaded: nn.Module = super().load_draft_model(target_model, target_attn_layer_names)
        return loaded

    def begin(self, slot: int, temperature: float) -> None:
        """A request takes a slot."""
        self.drafter.begin(slot, (), SamplingParams(temperature=temperature))

    def init_cudagraph_manager(self, cudagraph_mode: Any) -> None:
        """Nothing: the head runs eagerly."""

    def capture(self) -> None:
        """Nothing: vLLM would capture a chain's drafts, which are not made here."""

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
        count, step = input_batch.num_reqs, self.step
        drafts = self.draft_tokens[:count]
        drafts.zero_()
        if dummy_run:
            return drafts
        nodes = num_speculative_tokens
        nodes = self.num_speculative_steps if nodes is None else nodes
        plan = plan_drafts(step, input_batch, nodes, chains_only=self.chains_only)
        slots = input_batch.idx_mapping[:count]
        table = self.block_tables.input_block_tables[self.draft_kv_cache_group_id][:count]
        features = features_in_order(
            aux_hidden_states, self.model.head.config.target_layer_ids, input_batch.num_tokens
        )
        self._absorb(input_batch, slots, table, features)
        if any(plan.nodes):
            roots = last_sampled[slots].flatten().int()
            drafts.copy_(self._grow(plan, slots, table, roots, num_sampled))
        return drafts

    def _absorb(self, batch: Any, slots: Tensor, table: Tensor, features: Tensor) -> None:
        """Takes the step's committed rows into the head's cache.

        The first requests keep a path of their tree, or have few rows, all of which are kept; the
        others are long pieces of prompts.
        """
        step, steps = self.step, self.drafter.depth + 1
        together = sum(
            tree or rows <= steps for tree, rows in zip(step.drafted, step.scheduled, strict=True)
        )
        if together:
            self._absorb_paths(batch, together, slots, table, features)
        first = sum(step.scheduled[:together])
        for index in range(together, len(step.scheduled)):
            last = first + step.scheduled[index]
            one = slice(index, index + 1)
            absorb_piecewise(
                self.drafter, slots[one], table[one], step.contexts[one], features[first:last]
            )
            first = last

    def _absorb_paths(
        self, batch: Any, count: int, slots: Tensor, table: Tensor, features: Tensor
    ) -> None:
        step, device = self.step, features.device
        steps = torch.arange(self.drafter.depth + 1, dtype=torch.int32, device=device)
        starts = batch.query_start_loc[:count]
        kept = batch.query_start_loc[: count + 1].diff()
        rows = steps.expand(count, -1)
        if step.paths is not None:
            trees = torch.tensor(step.drafted[:count], device=device)
            rows = torch.where(trees[:, None], step.paths.rows[:count], rows)
            kept = torch.where(trees, step.paths.accepted[:count] + 1, kept)
        places = (starts[:, None] + rows.clamp(min=0)).clamp(max=features.shape[0] - 1)
        self.drafter.absorb(
            CommittedRows(
                slots=slots[:count],
                page_table=table[:count],
                starts=step.contexts[:count],
                counts=kept.int(),
                features=features[places.long()],
            )
        )

    def _grow(
        self, plan: Plan, slots: Tensor, table: Tensor, roots: Tensor, num_sampled: Tensor
    ) -> Tensor:
        """The tokens of new trees, roots left out; the trees are kept."""
        step, device, config = self.step, roots.device, self.model.head.config
        nodes, chains = torch.tensor([plan.nodes, plan.chains], dtype=torch.int32).to(device)
        live = (nodes > 0) & (num_sampled > 0)
        computed = step.computed[slots]
        last = min(self.max_model_len, config.max_position_embeddings) - 1
        left = (last - computed).clamp(min=0, max=self.drafter.depth)
        tokens, log_probs = self.drafter.propose(
            DraftInputs(
                slots=slots,
                page_table=table,
                prefix_len=computed.masked_fill(~live, 0),
                roots=roots,
                live=live,
                depth_left=left.masked_fill(~live, 0),
            )
        )
        too_deep = torch.arange(tokens.shape[1], device=device) >= left[:, None]
        log_probs = log_probs.masked_fill(too_deep[:, :, None, None], -torch.inf)
        if any(plan.chains):
            log_probs = only_best(log_probs, chains.bool())
        trees = step.ops.build_tree(
            tokens, log_probs, roots, nodes + 1, computed, capacity=step.trees.rows
        )
        step.trees.put(slots, trees)
        return trees.tokens[:, 1:].long()
