"""From accepted paths to the tables in which vLLM hands on tokens and their log-probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from jetflow_tree import Accepted
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.sampler import Sampler

_NOTHING = -1


def token_table(kept: Sequence[Accepted]) -> Tensor:
    """int32 ``[R, longest]``: the tokens of each request, -1 after its last one."""
    longest = max(len(accepted.emitted) for accepted in kept)
    return torch.tensor(
        [[*accepted.emitted, *[_NOTHING] * (longest - len(accepted.emitted))]
         for accepted in kept],
        dtype=torch.int32,
    )  # fmt: skip


def sampler_output(
    sampler: Sampler,
    kept: Sequence[Accepted],
    firsts: Sequence[int],
    logits: Tensor,
    processed: Sequence[Tensor],
    num_logprobs: int | None,
    named: Mapping[int, list[int]],
) -> SamplerOutput:
    """The output of a step as vLLM takes it.

    Args:
        sampler: vLLM's, which says which log-probabilities are wanted.
        kept: what each request keeps.
        firsts: row of the logits of each request's root.
        logits: ``[rows, V]`` as the target gave them.
        processed: for each request the processed logits of its path.
        num_logprobs: how many a token; None: none are wanted.
        named: for requests that want log-probabilities of tokens by name, these tokens; vLLM
            gives the whole batch such tables then.
    """
    tokens = token_table(kept)
    if num_logprobs is None and not named:
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)
    rows = _path_rows(sampler, kept, firsts, logits, processed, tokens.shape[1])
    ids = tokens.clamp(min=0).flatten().long()
    table: LogprobsTensors
    if named:
        longest = tokens.shape[1]
        wanted = {index * longest + place: tokens_
                  for index, tokens_ in named.items()
                  for place in range(longest)}  # fmt: skip
        table = sampler.gather_specific_token_logprobs(rows, wanted, ids)
    else:
        table = sampler.gather_logprobs(rows, num_logprobs, ids)
    return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=table)


def _path_rows(
    sampler: Sampler,
    kept: Sequence[Accepted],
    firsts: Sequence[int],
    logits: Tensor,
    processed: Sequence[Tensor],
    longest: int,
) -> Tensor:
    """``[R * longest, V]`` log-probabilities or logits of every row that emitted a token."""
    rows = logits.new_zeros((len(kept), longest, logits.shape[-1]), dtype=torch.float32)
    for index, (accepted, first) in enumerate(zip(kept, firsts, strict=True)):
        count = len(accepted.emitted)
        if sampler.logprobs_mode.startswith("processed"):
            rows[index, :count] = processed[index]
        else:
            rows[index, :count] = logits[[first + node for node in (0, *accepted.nodes)]].float()
    flat = rows.flatten(0, 1)
    if sampler.logprobs_mode.endswith("logits"):
        return flat
    scores: Tensor = sampler.compute_logprobs(flat)
    return scores
