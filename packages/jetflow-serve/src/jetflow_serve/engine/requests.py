"""Drafts of all running requests, whichever runner runs them."""

from __future__ import annotations

from collections.abc import Sequence

from jetflow_tree import Candidates, Tree
from vllm.sampling_params import SamplingParams

from jetflow_serve.blocks import reach
from jetflow_serve.counters import Counters
from jetflow_serve.engine.drafting import Ask
from jetflow_serve.engine.settings import Settings
from jetflow_serve.growing import grow
from jetflow_serve.reasons import Asked, Choice, choose

BUDGET = "jetflow_budget"
"""The key of a request's own budget in vLLM's ``extra_args``."""


class Drafts:
    """The tree of each request that is verified next, and what was counted.

    Args:
        settings: what the engine serves.
        longest: ``max_model_len``.
    """

    def __init__(self, settings: Settings, longest: int) -> None:
        self._settings, self._longest = settings, longest
        self.trees: dict[str, Tree] = {}
        self.counters = Counters()

    def forget(self, request: str) -> None:
        """Drops the tree of a request, if there is one."""
        self.trees.pop(request, None)

    def depth(self, place: int, nodes: int) -> int:
        """Deepest depth to draft after a root at ``place``, for at most ``nodes`` nodes."""
        head = self._settings.head
        return reach(head, min(self._settings.depth, nodes), place, self._longest)

    def grow(
        self, ask: Ask, candidates: Candidates, params: SamplingParams, nodes: int
    ) -> Sequence[int]:
        """The tokens of the request's new tree, root excluded, parents first."""
        choice = choice_of(params)
        if choice.budget is not None:
            nodes = min(nodes, choice.budget - 1)
        tree = grow(
            ask.root,
            candidates,
            choice.shape,
            nodes,
            params.temperature,
            self._settings.head,
            self._settings.options,
        )
        self.counters.drafted(choice.shape, choice.reason)
        self.trees[ask.request] = tree
        found: list[int] = tree.tokens[1:].tolist()
        return found


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
