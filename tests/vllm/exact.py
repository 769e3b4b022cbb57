"""The exact law of a sampled answer's first tokens, from the target in transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


class ExactLaw:
    """Probabilities of all answers of a few tokens.

    Args:
        target: the model's folder.
        prompt: token ids.
        depth: tokens of an answer.
        temperature: of the request.
        top_k: tokens that may follow a prefix.
        top_p: mass that may follow a prefix.
    """

    def __init__(
        self,
        target: Path,
        prompt: Sequence[int],
        depth: int,
        *,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
    ) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self._warp = (temperature, top_k, top_p)
        self.answers: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(depth):
            self.answers = self._longer(list(prompt))

    def _longer(self, prompt: list[int]) -> dict[tuple[int, ...], float]:
        prefixes = list(self.answers)
        longer = {}
        with torch.no_grad():
            rows = torch.tensor([[*prompt, *prefix] for prefix in prefixes])
            last = torch.cat([self._model(part).logits[:, -1] for part in rows.split(256)])
        for prefix, row in zip(prefixes, self._law(last.double()), strict=True):
            for token in row.nonzero().flatten().tolist():
                longer[(*prefix, token)] = self.answers[prefix] * float(row[token])
        return longer

    def _law(self, logits: Tensor) -> Tensor:
        temperature, top_k, top_p = self._warp
        logits = logits / temperature
        if top_k:
            logits[logits < logits.topk(top_k).values[:, -1:]] = -torch.inf
        ranked, order = logits.softmax(-1).sort(descending=True)
        ranked[ranked.cumsum(-1) - ranked >= top_p] = 0.0
        kept = torch.zeros_like(ranked).scatter(1, order, ranked)
        return kept / kept.sum(-1, keepdim=True)

    def marginal(self, place: int) -> dict[int, float]:
        """The law of the token at ``place``, 0 for the first."""
        law: dict[int, float] = {}
        for answer, share in self.answers.items():
            law[answer[place]] = law.get(answer[place], 0.0) + share
        return law

    def pairs(self) -> dict[tuple[int, int], float]:
        """The law of the first two tokens together."""
        law: dict[tuple[int, int], float] = {}
        for answer, share in self.answers.items():
            law[answer[:2]] = law.get(answer[:2], 0.0) + share
        return law


def chi_square(found: Sequence[object], law: dict[object, float]) -> tuple[float, float]:
    """Pearson's statistic of draws against their law, and what it exceeds once in 1,000.

    Outcomes that are expected less than 5 times share one bin.
    """
    total = len(found)
    bins = {outcome: share for outcome, share in law.items() if share * total >= 5}
    rest = 1.0 - sum(bins.values())
    statistic = 0.0
    for outcome, share in bins.items():
        statistic += (found.count(outcome) - share * total) ** 2 / (share * total)
    outside = sum(outcome not in bins for outcome in found)
    if rest * total >= 1:
        statistic += (outside - rest * total) ** 2 / (rest * total)
    else:
        assert outside <= 5
    freedom = len(bins) - (rest * total < 1)
    # Wilson and Hilferty's approximation of the upper quantile.
    third = 1 - 2 / (9 * freedom) + 3.09 * (2 / (9 * freedom)) ** 0.5
    return statistic, freedom * third**3
