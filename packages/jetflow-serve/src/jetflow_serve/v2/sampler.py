"""The target's token after every row, drawn as vLLM draws without speculation, and the walk.

vLLM's own noise is keyed by a request's seed and a token's place, so a seeded request is answered
as without speculation, up to how logits round.
"""

from __future__ import annotations

from typing import Any

import torch
from jetflow_tree import Accepted, Tree, walk
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
from vllm.v1.worker.gpu.sample.logprob import compute_topk_scores
from vllm.v1.worker.gpu.sample.output import SamplerOutput
from vllm.v1.worker.gpu.spec_decode.rejection_sampler import RejectionSampler

from jetflow_serve.v2.picks import target_picks
from jetflow_serve.v2.step import Shared


class TreeRejectionSampler(RejectionSampler):
    """Walks trees instead of testing chains.

    Args:
        sampler: vLLM's sampler.
        spec_config: vLLM's speculative configuration.
        device: where it runs.
        shared: the runner's state.
    """

    def __init__(self, sampler: Any, spec_config: Any, device: Any, *, shared: Shared) -> None:
        super().__init__(sampler, spec_config, device)
        self._shared = shared

    def __call__(
        self,
        logits: Tensor,
        input_batch: Any,
        draft_logits: Tensor | None = None,
        invalid_drafts: Tensor | None = None,
    ) -> SamplerOutput:
        """VLLM's output of a step with drafts."""
        found, processed = target_picks(self.sampler, logits, input_batch)
        picks = found.tolist()
        bounds = input_batch.cu_num_logits_np.tolist()
        self._shared.kept = kept = [
            _kept(entry, picks[first:end], None if invalid_drafts is None
                  else invalid_drafts[first:end].tolist())
            for entry, first, end in zip(self._shared.staged, bounds, bounds[1:], strict=False)
        ]  # fmt: skip
        sampled, counts = self._tables(kept, logits.device)
        counts, rejected = get_num_sampled_and_rejected(
            counts,
            input_batch.seq_lens,
            input_batch.cu_num_logits,
            input_batch.idx_mapping,
            self.sampler.req_states.prefill_len.gpu,
        )
        processed_wanted = self.sampler.logprobs_mode.startswith("processed")
        return SamplerOutput(
            sampled_token_ids=sampled,
            logprobs_tensors=self._logprobs(
                kept, bounds, processed if processed_wanted else logits, input_batch
            ),
            num_nans=None,
            num_sampled=counts,
            num_rejected=rejected,
            sampling_mask_tensors=None,
        )

    def _logprobs(
        self, kept: list[Accepted], bounds: list[int], logits: Tensor, batch: Any
    ) -> LogprobsTensors | None:
        """Log-probabilities of each request's path, where its first rows are looked for."""
        wanted = self.sampler.get_logprobs_dims(batch.idx_mapping_np)
        if wanted is None:
            return None
        count, named = wanted
        emitted = [
            token
            for one, first, end in zip(kept, bounds, bounds[1:], strict=False)
            for token in (*one.emitted, *[0] * (end - first - len(one.emitted)))
        ]
        table: LogprobsTensors = compute_topk_scores(
            logits[_paths_first(kept, bounds)],
            count,
            torch.tensor(emitted, dtype=torch.int64, device=logits.device),
            bounds,
            logprob_token_ids_state=self.sampler.logprob_token_ids_state,
            expanded_idx_mapping=batch.expanded_idx_mapping,
            max_per_req_token_ids=named,
            logits_mode=self.sampler.logprobs_mode.endswith("logits"),
        )
        return table

    def _tables(self, kept: list[Accepted], device: Any) -> tuple[Tensor, Tensor]:
        """int64 ``[R, nodes + 1]`` tokens, and int32 ``[R]`` how many of each row count."""
        width = self.num_speculative_steps + 1
        rows = [[*one.emitted, *[0] * (width - len(one.emitted))] for one in kept]
        counts = [len(one.emitted) for one in kept]
        return (
            torch.tensor(rows, dtype=torch.int64, device=device),
            torch.tensor(counts, dtype=torch.int32, device=device),
        )


def _kept(entry: Any, picks: list[int], invalid: list[bool] | None) -> Accepted:
    """What a request keeps; drafts that a grammar forbids end its tree."""
    tree = Tree.root_only(0) if entry is None else entry.tree
    if invalid is not None and True in invalid:
        tree = tree.trim(max(1, invalid.index(True)))
    return walk(tree, picks[: tree.num_nodes])


def _paths_first(kept: list[Accepted], bounds: list[int]) -> Tensor:
    """The rows of each request in an order that begins with its accepted path."""
    order: list[int] = []
    for accepted, first, end in zip(kept, bounds, bounds[1:], strict=False):
        path = [0, *accepted.nodes]
        others = [row for row in range(end - first) if row not in set(path)]
        order += [first + row for row in (*path, *others)]
    return torch.tensor(order)
