"""The target's token after every row, drawn as vLLM draws without speculation, and the walk.

vLLM's own noise is keyed by a request's seed and a token's place, so a seeded request is answered
as without speculation, up to how logits round. The host waits for nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from jetflow_core.rounds import AcceptedBatch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from jetflow_serve.cuda.lines import paths_first
from jetflow_serve.cuda.step import DeviceStep
from jetflow_serve.v2.picks import target_picks


class DeviceRejectionSampler(RejectionSampler):
    """Walks trees instead of testing chains.

    Args:
        sampler: vLLM's sampler.
        spec_config: vLLM's speculative configuration.
        device: where it runs.
        step: the runner's state.
    """

    def __init__(self, sampler: Any, spec_config: Any, device: Any, *, step: DeviceStep) -> None:
        super().__init__(sampler, spec_config, device)
        self._step = step

    def __call__(
        self,
        logits: Tensor,
        input_batch: Any,
        draft_logits: Tensor | None = None,
        invalid_drafts: Tensor | None = None,
    ) -> SamplerOutput:
        """VLLM's output of a step with drafts."""
        picks, processed = target_picks(self.sampler, logits, input_batch)
        starts = input_batch.cu_num_logits
        paths = self._step.walk(picks, starts, invalid_drafts)
        counts, rejected = get_num_sampled_and_rejected(
            paths.accepted + 1,
            input_batch.seq_lens,
            starts,
            input_batch.idx_mapping,
            self.sampler.req_states.prefill_len.gpu,
        )
        processed_wanted = self.sampler.logprobs_mode.startswith("processed")
        return SamplerOutput(
            sampled_token_ids=self._tokens(paths),
            logprobs_tensors=self._logprobs(
                paths, processed if processed_wanted else logits, input_batch
            ),
            num_nans=None,
            num_sampled=counts,
            num_rejected=rejected,
            sampling_mask_tensors=None,
        )

    def _tokens(self, paths: AcceptedBatch) -> Tensor:
        """int64 ``[R, nodes + 1]``, 0 behind what is emitted."""
        width = self.num_speculative_steps + 1
        found = paths.tokens[:, :width].long().clamp(min=0)
        return torch.nn.functional.pad(found, (0, width - found.shape[1]))

    def _logprobs(self, paths: AcceptedBatch, logits: Tensor, batch: Any) -> LogprobsTensors | None:
        """Log-probabilities of each request's path, where its first rows are looked for."""
        wanted = self.sampler.get_logprobs_dims(batch.idx_mapping_np)
        if wanted is None:
            return None
        count, named = wanted
        order, emitted = paths_first(paths, batch.cu_num_logits, logits.shape[0])
        table: LogprobsTensors = compute_topk_scores(
            logits[order],
            count,
            emitted,
            batch.cu_num_logits_np.tolist(),
            logprob_token_ids_state=self.sampler.logprob_token_ids_state,
            expanded_idx_mapping=batch.expanded_idx_mapping,
            max_per_req_token_ids=named,
            logits_mode=self.sampler.logprobs_mode.endswith("logits"),
        )
        return table
