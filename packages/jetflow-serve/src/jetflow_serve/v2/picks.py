"""The target's token after every row of a batch, by vLLM's own sampler and noise."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample


def target_picks(sampler: Any, logits: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    """A token for every row, at that row's own place in the text.

    Args:
        sampler: vLLM's.
        logits: ``[L, vocab]``.
        batch: vLLM's ``InputBatch``.

    Returns:
        int64 ``[L]``, and the logits as sampling parameters left them.
    """
    places = batch.positions[batch.logits_indices]
    processed = sampler.apply_sampling_params(
        logits,
        batch.expanded_idx_mapping,
        batch.idx_mapping,
        batch.idx_mapping_np,
        places,
        batch.input_ids[batch.logits_indices],
        batch.expanded_local_pos,
        batch.seq_lens_cpu_upper_bound.numpy(),
    )
    states = sampler.sampling_states
    picks: Tensor = gumbel_sample(
        processed,
        batch.expanded_idx_mapping,
        states.temperature.gpu,
        states.seeds.gpu,
        places,
        apply_temperature=False,
        is_drafting=False,
        use_fp64=sampler.use_fp64_gumbel,
    )
    return picks, processed
