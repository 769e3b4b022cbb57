"""The head's second pass at roots of stored texts, many trees in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jetflow_core.head.model import DraftHead
from jetflow_core.head.second_pass import PaddedTrees, child_candidates, second_pass
from jetflow_tree import Candidates
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from jetflow_train.evaluation.second_walk import Asked
from jetflow_train.step import autocast
from jetflow_train.target import FrozenTarget

_SCORES = 2**27
"""Attention scores of one pass of the head, over all its query heads."""
_LOGITS = 2**26
"""Logits that are held at once."""


class SecondPass:
    """A head that reads drafted trees over the contexts of some texts.

    Args:
        target: that wrote the texts.
        head: trained with prefix-filled blocks, on the target's device.
        features: ``[R, T, taps * hidden]``, a row a text, from ``drafts.draft_passes``.
        own: with the head's path term, where it has one.
    """

    @torch.no_grad()
    def __init__(
        self, target: FrozenTarget, head: DraftHead, features: Tensor, *, own: bool
    ) -> None:
        self._target, self._head = target, head
        self._path = head.path if own else None
        self._embedding = target.embedding.to(next(head.parameters()).dtype)
        positions = torch.arange(features.shape[1], device=target.device)
        with autocast(target.device, head):
            self._fused = head.fuse(features)
            self._context = head.context_keys_values(
                self._fused, positions.expand(features.shape[:2])
            )

    @torch.no_grad()
    def children(self, asked: Sequence[Asked]) -> list[Candidates]:
        """Row i of a tree's table: the children of its node i, best first.

        Raises:
            ValueError: the head was not trained for it, or its logits are not finite.
        """
        rows = max(each.tree.num_nodes for each in asked)
        columns = self._context[0][0].shape[2] + 2 * rows
        each = max(1, _SCORES // (self._head.config.num_heads * 2 * rows * columns))
        found: list[Candidates] = []
        for start in range(0, len(asked), each):
            found += self._together(asked[start : start + each], rows)
        return found

    def _together(self, asked: Sequence[Asked], rows: int) -> list[Candidates]:
        device = self._target.device
        trees = PaddedTrees.of([each.tree for each in asked], rows, device)
        which = torch.tensor([each.text for each in asked], device=device)
        lengths = torch.tensor([each.place for each in asked], device=device)
        # Columns behind every root are seen by none.
        width = max(each.place for each in asked)
        context = [(k[which, :, :width], v[which, :, :width]) for k, v in self._context]
        before = self._fused[which, (lengths - 1).clamp(min=0)]
        last = torch.where(lengths[:, None] > 0, before, 0.0)
        # Fused GPU kernels have given NaN for padded contexts under masks.
        with autocast(device, self._head), sdpa_kernel(SDPBackend.MATH):
            hidden = second_pass(self._head, self._embedding, trees, context, lengths, last)
        tokens, scores = self._candidates(trees.tokens.flatten(), hidden.flatten(0, 1))
        shape = (len(asked), rows, -1)
        tables = zip(asked, tokens.view(shape), scores.double().view(shape), strict=True)
        return [
            Candidates.marginal(some[: each.tree.num_nodes], log_probs[: each.tree.num_nodes])
            for each, some, log_probs in tables
        ]

    def _candidates(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Children of nodes ``[n]`` on the host, computed in pieces of bounded memory."""
        target, parts = self._target, []
        each = max(1, _LOGITS // target.lm_head.shape[0])
        for known, some in zip(tokens.split(each), hidden.split(each), strict=True):
            # In the type that the decode engine drafts in, whatever the target's is.
            logits = (some.to(target.dtype) @ target.lm_head.T).float()
            if not torch.isfinite(logits.amax(-1)).all():
                raise ValueError("the second pass gave logits that are not finite")
            rows = some.to(self._embedding.dtype)
            width = self._head.config.candidates
            parts.append(child_candidates(self._path, self._embedding, known, rows, logits, width))
        return torch.cat([c for c, _ in parts]).cpu(), torch.cat([s for _, s in parts]).cpu()
