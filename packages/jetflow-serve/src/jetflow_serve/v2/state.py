"""vLLM's seam for a model's state: positions, attention, sampler and cache of a step with trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from jetflow_serve import stage
from jetflow_serve.cpu_cache import move_rows
from jetflow_serve.tree_rows import tree_rows
from jetflow_serve.v2.sampler import TreeRejectionSampler
from jetflow_serve.v2.step import Shared


class TreeModelState(DefaultModelState):
    """vLLM's state of a decoder, with trees; ``shared`` is put in place by the runner."""

    shared: Shared

    def use_caches(self, group: int, caches: list[Tensor]) -> None:
        """Tells where the target's layers keep keys and values.

        Args:
            group: their group, which has slots and blocks of its own.
            caches: each layer's.
        """
        self.group, self.caches = group, caches

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """Remembers what the request asks for."""
        super().add_request(req_index, new_req_data)
        self.shared.params[new_req_data.req_id] = new_req_data.sampling_params

    def remove_request(self, req_id: str) -> None:
        """Forgets a request."""
        super().remove_request(req_id)
        self.shared.params.pop(req_id, None)
        self.shared.drafts.forget(req_id)

    def prepare_attn(
        self,
        input_batch: Any,
        cudagraph_mode: Any,
        block_tables: tuple[Tensor, ...],
        slot_mappings: Tensor,
        attn_groups: Any,
        kv_cache_config: Any,
        for_capture: bool = False,
        ubatch_idx: int = 0,
        model_specific_attn_metadata: Any = None,
    ) -> dict[str, Any]:
        """Metadata of a step; its rows' slots are known, so positions may follow depths now."""
        self.shared.begin(input_batch)
        self._slots = slot_mappings[self.group]
        for entry in self.shared.staged:
            if entry is not None:
                input_batch.positions[entry.rows] = torch.from_numpy(entry.positions())
        metadata: dict[str, Any] = super().prepare_attn(
            input_batch, cudagraph_mode, block_tables, slot_mappings, attn_groups,
            kv_cache_config, for_capture, ubatch_idx, model_specific_attn_metadata,
        )  # fmt: skip
        trees = tree_rows(self.shared.staged)
        for layer in metadata.values():
            layer.trees = trees
        return metadata

    def custom_sampler(self, sampler: Any) -> tuple[Any, Any]:
        """VLLM's sampler for batches without drafts, ours for those with."""
        return sampler, TreeRejectionSampler(
            sampler, self.vllm_config.speculative_config, self.device, shared=self.shared
        )

    def postprocess_state(
        self, idx_mapping: Tensor, num_sampled: Any, num_computed_tokens: Tensor | None = None
    ) -> None:
        """Moves the accepted rows of the target's cache behind the context."""
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)
        pairs: list[tuple[int, int]] = []
        for entry, accepted in zip(self.shared.staged, self.shared.kept, strict=True):
            if entry is not None:
                own = stage.moves(entry, accepted)
                self.shared.drafts.verified(entry, accepted, len(own))
                pairs += own
        if pairs:
            sources, targets = (self._slots[list(rows)] for rows in zip(*pairs, strict=True))
            for cache in self.caches:
                move_rows(cache, sources, targets)
