"""Candidates of a head at every root of stored texts, several texts in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import draft_candidates
from jetflow_core.head.scores import score_temperature
from torch import Tensor

from jetflow_train.blocks import block_ropes, run_blocks
from jetflow_train.evaluation.policies import OWN
from jetflow_train.evaluation.walk import Drafts, StoredText
from jetflow_train.sight import document_mask
from jetflow_train.step import autocast
from jetflow_train.target import FrozenTarget

_SCORES = 2**26
"""Attention scores of one pass of the head, over all its query heads."""
_LOGITS = 2**26
"""Logits that are held at once."""


@dataclass(frozen=True, slots=True, eq=False)
class DraftedTexts:
    """Texts that went through the head together.

    Attributes:
        texts: in order.
        drafts: of each text, by the name of the candidates.
        features: ``[R, T, taps * hidden]`` of the target, a row a text, padded behind.
    """

    texts: Sequence[StoredText]
    drafts: Sequence[Mapping[str, Drafts]]
    features: Tensor


def draft_texts(
    target: FrozenTarget,
    head: DraftHead,
    texts: Sequence[StoredText],
    names: Sequence[str],
    temperature: float,
) -> Iterator[Mapping[str, Drafts]]:
    """Candidates for each text, in order; see ``draft_passes``."""
    for some in draft_passes(target, head, texts, names, temperature):
        yield from some.drafts


@torch.no_grad()
def draft_passes(
    target: FrozenTarget,
    head: DraftHead,
    texts: Sequence[StoredText],
    names: Sequence[str],
    temperature: float,
) -> Iterator[DraftedTexts]:
    """Candidates for all texts, in order, as many at a time as one pass takes.

    Args:
        target: the target that wrote the texts.
        head: the head, on the target's device.
        texts: none longer than the target's positions.
        names: which candidates, of ``policies.OWN`` and ``policies.BASE``.
        temperature: of the requests that they are drafts for.

    Raises:
        ValueError: the head's logits are not finite.
    """
    embedding = target.embedding.to(next(head.parameters()).dtype)
    fitted = score_temperature(head.config, temperature)
    for some in _passes(head, texts):
        features, made = _draft_together(target, head, embedding, some, names)
        # The base without its term is a comparison, its scores as they are.
        drafts = [
            {
                name: replace(each, score_temperature=fitted) if name == OWN else each
                for name, each in named.items()
            }
            for named in made
        ]
        yield DraftedTexts(some, drafts, features)


def _passes(head: DraftHead, texts: Sequence[StoredText]) -> Iterator[list[StoredText]]:
    """Texts cut into passes of bounded memory."""
    slots = head.num_slots(head.config.max_depth) * head.config.num_heads
    some: list[StoredText] = []
    width = roots = 0
    for text in texts:
        width, roots = max(width, len(text.tokens)), max(roots, len(text.answer))
        if some and (len(some) + 1) * roots * slots * width > _SCORES:
            yield some
            some, width, roots = [], len(text.tokens), len(text.answer)
        some.append(text)
    if some:
        yield some


def _draft_together(
    target: FrozenTarget,
    head: DraftHead,
    embedding: Tensor,
    texts: Sequence[StoredText],
    names: Sequence[str],
) -> tuple[Tensor, list[dict[str, Drafts]]]:
    tokens, documents, anchors = (
        torch.from_numpy(array).to(target.device) for array in _padded(texts)
    )
    positions = torch.arange(tokens.shape[1], device=target.device).expand_as(tokens)
    features, _ = target.capture(
        tokens, positions, document_mask(documents), head.config.target_layer_ids
    )
    with autocast(target.device, head):
        ropes = block_ropes(head, positions, anchors, embedding.dtype)
        hidden = run_blocks(head, features, embedding, tokens, documents, ropes, anchors)
    counts = [len(text.answer) for text in texts]
    flat = torch.cat([rows[:count] for rows, count in zip(hidden, counts, strict=True)])
    roots = tokens.gather(1, anchors)
    known = torch.cat([row[:count] for row, count in zip(roots, counts, strict=True)])
    made = {name: [part.split(counts) for part in both] for name, both in
            _candidates(target, head, embedding, known, flat, names).items()}  # fmt: skip
    return features, [
        {
            name: Drafts(
                tokens=chosen[index].numpy(),
                log_probs=table[index].numpy(),
                positions=head.config.max_position_embeddings,
            )
            for name, (chosen, table) in made.items()
        }
        for index in range(len(texts))
    ]


def _padded(
    texts: Sequence[StoredText],
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int64]], ...]:
    """Tokens, documents and anchors of the texts as rows; padding is a document of its own."""
    width, roots = max(len(t.tokens) for t in texts), max(len(t.answer) for t in texts)
    tokens = np.zeros((len(texts), width), dtype=np.int64)
    documents = np.full((len(texts), width), -1, dtype=np.int64)
    anchors = np.zeros((len(texts), roots), dtype=np.int64)
    for row, text in enumerate(texts):
        length, count = len(text.tokens), len(text.answer)
        tokens[row, :length], documents[row, :length] = text.tokens, 0
        # The root at place 0 fills the shape; what it drafts is dropped.
        anchors[row, :count] = text.first + np.arange(count)
    return tokens, documents, anchors


def _candidates(
    target: FrozenTarget,
    head: DraftHead,
    embedding: Tensor,
    roots: Tensor,
    hidden: Tensor,
    names: Sequence[str],
) -> dict[str, tuple[Tensor, Tensor]]:
    """Tokens and tables over all roots on the host, computed in pieces of bounded memory."""
    each = max(1, _LOGITS // (hidden.shape[1] * target.lm_head.shape[0]))
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}
    for some_roots, some in zip(roots.split(each), hidden.split(each), strict=True):
        logits = some.to(target.dtype) @ target.lm_head.T
        # In the type that the decode engine drafts in, whatever the target's is.
        wide = logits.float()
        if not torch.isfinite(wide.amax(-1)).all():
            raise ValueError("the draft head gave logits that are not finite")
        for name in names:
            if name == OWN:
                rows = some.to(embedding.dtype)
                chosen, table = draft_candidates(head, embedding, some_roots, rows, wide)
            else:
                chosen, table = _base_candidates(wide, head.config.candidates)
            found[name].append((chosen.cpu(), table.cpu()))
    return {name: (torch.cat([c for c, _ in parts]), torch.cat([t for _, t in parts]))
            for name, parts in found.items()}  # fmt: skip


def _base_candidates(logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Each depth's best tokens ``[R, D, K]`` and their log-probabilities ``[R, D, 1, K]``."""
    best, chosen = logits.topk(min(width, logits.shape[-1]), dim=-1)
    return chosen, (best - logits.logsumexp(-1, keepdim=True)).clamp(max=0.0).unsqueeze(2)
