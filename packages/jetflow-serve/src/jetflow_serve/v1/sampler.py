"""The target's own token after every row that the walk visits, and the walk.

Root rows go through vLLM's own processors, exactly as without speculation. Deeper rows are
processed one by one with the tokens of their own path, and only if the walk comes by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jetflow_tree import Accepted, Tree, lazy_walk
from torch import Tensor
from vllm.v1.sample.logits_processor.builtin import MinTokensLogitsProcessor
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops.bad_words import apply_bad_words
from vllm.v1.sample.ops.penalties import apply_all_penalties
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p
from vllm.v1.sample.sampler import Sampler

from jetflow_serve.drawing import draw

_GREEDY = 1e-5


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose rows are sampled."""

    tree: Tree
    """Its tree; a root alone where nothing was drafted."""
    first: int
    """Row of the logits that holds the root."""
    place: int
    """Where the root stands in the text."""
    seed: int


def walk_all(
    sampler: Sampler, logits: Tensor, requests: Sequence[Asked], metadata: SamplingMetadata
) -> tuple[list[Accepted], list[Tensor]]:
    """What every request of a batch keeps.

    Args:
        sampler: vLLM's sampler, whose processors are applied.
        logits: ``[rows, V]``, not changed.
        requests: in the order of the batch.
        metadata: vLLM's sampling metadata of the same requests.

    Returns:
        For each request what is kept, and the processed logits ``[1 + accepted, V]`` of its path.
    """
    firsts = torch.tensor([request.first for request in requests])
    roots = sampler.apply_logits_processors(
        logits[firsts].float(), metadata, predict_bonus_token=False
    )
    kept, processed = [], []
    for index, request in enumerate(requests):
        row = _Rows(index, request, logits, roots[index], metadata)
        kept.append(lazy_walk(request.tree, row.pick))
        processed.append(torch.stack(row.visited))
    return kept, processed


class _Rows:
    """The rows of one request, processed as the walk reaches them."""

    def __init__(
        self, index: int, request: Asked, logits: Tensor, root: Tensor, metadata: SamplingMetadata
    ) -> None:
        self._index, self._request, self._logits = index, request, logits
        self._root, self._metadata = root, metadata
        self.visited: list[Tensor] = []

    def pick(self, row: int) -> int:
        """The token after ``row``."""
        request, metadata = self._request, self._metadata
        weights = self._root if row == 0 else self._deeper(row)
        if metadata.all_greedy or self._temperature() < _GREEDY:
            self.visited.append(weights)
            return int(weights.argmax())
        self.visited.append(self._warped(weights))
        depth = int(request.tree.depths[row])
        return draw(self.visited[-1], request.seed, request.place + depth + 1)

    def _temperature(self) -> float:
        assert self._metadata.temperature is not None
        return float(self._metadata.temperature[self._index])

    def _warped(self, weights: Tensor) -> Tensor:
        """After temperature, top-k and top-p."""
        metadata, own = self._metadata, slice(self._index, self._index + 1)
        warped: Tensor = apply_top_k_top_p(
            (weights / self._temperature())[None],
            None if metadata.top_k is None else metadata.top_k[own],
            None if metadata.top_p is None else metadata.top_p[own],
        )
        return warped[0]

    def _deeper(self, row: int) -> Tensor:
        """A drafted row's logits after everything that a request may ask for.

        vLLM's order: allowed tokens, bad words, least length, penalties.
        """
        metadata, index = self._metadata, self._index
        weights = self._logits[self._request.first + row].float()[None].clone()
        tree = self._request.tree
        path = [int(tree.tokens[node]) for node in tree.path(row)]
        if metadata.allowed_token_ids_mask is not None:
            weights.masked_fill_(metadata.allowed_token_ids_mask[index][None], float("-inf"))
        if index in metadata.bad_words_token_ids:
            words = {0: metadata.bad_words_token_ids[index]}
            apply_bad_words(weights, words, [[*metadata.output_token_ids[index], *path]])
        self._forbid_ends(weights, len(path))
        if not metadata.no_penalties:
            weights = self._penalised(weights, path)
        return weights[0]

    def _forbid_ends(self, weights: Tensor, drafted: int) -> None:
        for processor in self._metadata.logitsprocs.non_argmax_invariant:
            if not isinstance(processor, MinTokensLogitsProcessor):
                raise TypeError(f"{type(processor).__name__} is not served with drafts")
            if self._index in processor.min_toks:
                least, written, stops, grammar = processor.min_toks[self._index]
                if len(written) + drafted < least:
                    _forbid(weights, list(stops), spare_dead_ends=grammar)

    def _penalised(self, weights: Tensor, path: list[int]) -> Tensor:
        metadata, own = self._metadata, slice(self._index, self._index + 1)
        assert metadata.prompt_token_ids is not None
        penalised: Tensor = apply_all_penalties(
            weights,
            metadata.prompt_token_ids[own],
            metadata.presence_penalties[own],
            metadata.frequency_penalties[own],
            metadata.repetition_penalties[own],
            [[*metadata.output_token_ids[self._index], *path]],
        )
        return penalised


def _forbid(weights: Tensor, tokens: list[int], *, spare_dead_ends: bool) -> None:
    """Forbids tokens of a row ``[1, V]``, in place; not where a grammar allows no others."""
    before = weights[:, tokens].clone()
    weights[:, tokens] = float("-inf")
    if spare_dead_ends and bool(weights.isneginf().all()):
        weights[:, tokens] = before
