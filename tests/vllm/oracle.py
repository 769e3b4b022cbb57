"""Acceptance on purpose: the known continuation is hidden in the head's candidate tables.

The head of these tests is random, so its drafts are hardly ever accepted. Here the target's own
next token takes a random rank among the candidates of its depth, or is left out now and then; so
trees branch, paths of every depth are accepted, and rows that are not neighbours are moved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jetflow_tree import Candidates

LEFT_OUT = 0.12
"""How often a depth lacks the true token."""


class Oracle:
    """Knows the answers to some prompts.

    Args:
        known: prompts with their answers.
        seed: of the ranks.
    """

    def __init__(self, known: Sequence[tuple[Sequence[int], Sequence[int]]], seed: int = 0) -> None:
        self._known = {tuple(prompt): list(answer) for prompt, answer in known}
        self._random = np.random.default_rng(seed)
        self.widest = 0

    def take_over(self, runner: Any) -> None:
        """Lets the runner's drafter run as it is, and plants the truth in what it proposes."""
        drafter = runner.speculator if hasattr(runner, "speculator") else runner.drafter
        draft, prompt_of = drafter.draft, _prompts(runner)

        def planted(asks: Any, last: Any, common: Any) -> list[Candidates]:
            self.widest = max(self.widest, len(asks))
            return [
                self._plant(found, self._truth(prompt_of(ask.request), ask))
                for ask, found in zip(asks, draft(asks, last, common), strict=True)
            ]

        drafter.draft = planted

    def _truth(self, prompt: Sequence[int], ask: Any) -> list[int]:
        answer = self._known.get(tuple(prompt))
        return [] if answer is None else answer[ask.place + 1 - len(prompt) :]

    def _plant(self, found: Candidates, truth: list[int]) -> Candidates:
        tokens = found.tokens.copy()
        depth, width = tokens.shape
        table = np.empty((depth, width, width))
        for level in range(depth):
            place = int(self._random.integers(width))
            if level < len(truth) and self._random.random() > LEFT_OUT:
                known = np.flatnonzero(tokens[level] == truth[level])
                if known.size:
                    tokens[level, known[0]] = tokens[level, place]
                tokens[level, place] = truth[level]
            for parent in range(width):
                table[level, parent] = self._scores(place, width)
        return Candidates(tokens, table)

    def _scores(self, place: int, width: int) -> np.ndarray:
        """Halves for the ranks in a random order, the true token among the first three."""
        order = self._random.permutation(np.delete(np.arange(width), place))
        ranked = np.insert(order, int(self._random.integers(min(3, width))), place)
        scores = np.empty(width)
        scores[ranked] = -np.log(2.0) * np.arange(1, width + 1)
        return scores


def _prompts(runner: Any) -> Callable[[str], Sequence[int]]:
    """Looks up the prompt of a request, in either model runner."""
    if hasattr(runner, "requests"):
        return lambda request: runner.requests[request].prompt_token_ids
    prompts: dict[str, Sequence[int]] = {}
    add = runner.model_state.add_request

    def adding(index: int, request: Any) -> None:
        prompts[request.req_id] = request.prompt_token_ids
        add(index, request)

    runner.model_state.add_request = adding
    return prompts.__getitem__
