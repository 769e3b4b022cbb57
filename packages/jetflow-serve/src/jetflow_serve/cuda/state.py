"""vLLM's seam for a model's state on a GPU: positions, attention, sampler and cache of a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.model_states.default import DefaultModelState

from jetflow_serve.cuda.sampler import DeviceRejectionSampler
from jetflow_serve.cuda.step import DeviceStep
from jetflow_serve.leading_rows import LeadingRows, count_leading
from jetflow_serve.packed_cache import packed_pools


class CudaTreeModelState(DefaultModelState):
    """vLLM's state of a decoder on a GPU, with trees.

    What attention reads lies in tensors that stay where they are, so that a graph of the verify
    pass reads the newest trees.
    """

    step: DeviceStep
    """Put in place by the runner."""

    def use_caches(self, group: int, caches: list[Tensor], block: int) -> None:
        """Tells where the target's layers keep keys and values.

        Args:
            group: their group, which has blocks of its own.
            caches: each layer's.
            block: rows of a block.
        """
        self._group, self._block = group, block
        pools = [pool for cache in caches for pool in packed_pools(cache)]
        self._pools = self.step.ops.cache_pools(pools)
        shape = (self.max_num_tokens, self.step.trees.words)
        self._ancestors = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._prefix_len = torch.zeros(self.max_num_reqs, dtype=torch.int32, device=self.device)

    def add_request(self, req_index: int, new_req_data: Any) -> None:
        """As vLLM's; remembers what the request asks for."""
        super().add_request(req_index, new_req_data)
        self.step.add(new_req_data.req_id, new_req_data.sampling_params)

    def remove_request(self, req_id: str) -> None:
        """As vLLM's; forgets the request."""
        super().remove_request(req_id)
        self.step.forget(req_id)

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
        self.step.begin(input_batch)
        self._table = block_tables[self._group]
        leading = self._leading(input_batch, cudagraph_mode == CUDAGraphMode.FULL)
        metadata: dict[str, Any] = super().prepare_attn(
            input_batch, cudagraph_mode, block_tables, slot_mappings, attn_groups,
            kv_cache_config, for_capture, ubatch_idx, model_specific_attn_metadata,
        )  # fmt: skip
        for layer in metadata.values():
            layer.leading = leading
        return metadata

    def _leading(self, batch: Any, whole: bool) -> LeadingRows:
        """The first requests of a batch; all of them, with the padding, for a graph."""
        step = self.step
        count = count_leading(step.scheduled, step.trees.rows)
        rows = batch.num_tokens_after_padding if whole else sum(step.scheduled[:count])
        requests = batch.num_reqs_after_padding if whole else count
        starts = batch.query_start_loc[: requests + 1]
        prefix, words = self._prefix_len[:requests], self._ancestors[:rows]
        prefix.zero_()
        if count:
            prefix[:count] = step.contexts[:count]
            self._pack(batch, count, rows, words)
        return LeadingRows(rows, starts, prefix, words)

    def _pack(self, batch: Any, count: int, rows: int, words: Tensor) -> None:
        """Fills in positions and ancestor words of the first ``rows`` rows of a batch."""
        step, lines = self.step, self.step.lines
        assert lines is not None
        contexts = step.contexts[:count]
        packed = step.ops.pack_trees(
            lines.tokens[:count],
            contexts[:, None] + lines.depths[:count],
            lines.ancestors[:count],
            self._table[:count],
            contexts,
            batch.query_start_loc[: count + 1].diff(),
            rows=rows,
            page=self._block,
        )
        words.copy_(packed.ancestors)
        batch.positions[:rows].copy_(packed.positions)

    def custom_sampler(self, sampler: Any) -> tuple[Any, Any]:
        """VLLM's sampler for batches without drafts, ours for those with."""
        return sampler, DeviceRejectionSampler(
            sampler, self.vllm_config.speculative_config, self.device, step=self.step
        )

    def postprocess_state(
        self, idx_mapping: Tensor, num_sampled: Any, num_computed_tokens: Tensor | None = None
    ) -> None:
        """Moves the accepted rows of the target's cache behind the context."""
        super().postprocess_state(idx_mapping, num_sampled, num_computed_tokens)
        step = self.step
        if step.paths is None:
            return
        rows = step.paths.rows
        # The features of the kept rows are taken elsewhere.
        nothing = torch.empty(*rows.shape, 0, dtype=self.dtype, device=self.device)
        step.ops.commit_path(self._pools, self._table[: len(rows)], step.contexts, rows, nothing)
