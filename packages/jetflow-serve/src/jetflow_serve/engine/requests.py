"""From vLLM's sampling parameters to what decides how a request is drafted for."""

from __future__ import annotations

from vllm.sampling_params import SamplingParams

from jetflow_serve.reasons import Asked, Choice, choose

BUDGET = "jetflow_budget"
"""The key of a request's own budget in vLLM's ``extra_args``."""


def choice_of(params: SamplingParams) -> Choice:
    """The shape that a request's sampling parameters allow."""
    return choose(
        Asked(
            penalties=(
                params.repetition_penalty != 1.0
                or params.frequency_penalty != 0.0
                or params.presence_penalty != 0.0
            ),
            bad_words=bool(params.bad_words),
            structured_output=params.structured_outputs is not None,
            thinking_budget=params.thinking_token_budget is not None,
            logprob_token_ids=bool(params.logprob_token_ids),
            budget=(params.extra_args or {}).get(BUDGET),
        )
    )
