"""What a head drafts at every root of a finished text, under any wiring.

An independent computation of the draft: no incremental cache, no fused attention, all roots of a
text side by side.
What the engine's own drafter proposes is collected by ``drafter_best`` and has to agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from jetflow_core.doctor.wirings import Wiring
from jetflow_core.head.bridge import last_rows
from jetflow_core.head.drafter import NonFiniteDraft
from jetflow_core.head.model import DraftHead
from jetflow_core.protocols import Drafter

_ROOTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class TappedText:
    """A text that the target wrote, with the outputs of the layers that wirings tap."""

    tokens: tuple[int, ...]
    """Prompt and answer."""
    first_root: int
    """Index of the prompt's last token, the first root."""
    layers: Mapping[int, Tensor]
    """By layer ``[n, hidden]`` for the first n tokens, n at least ``len(tokens) - 1``."""

    @property
    def roots(self) -> range:
        """Indices of all roots: a token of the answer follows each."""
        return range(self.first_root, len(self.tokens) - 1)

    def features(self, taps: Sequence[int]) -> Tensor:
        """``[n, taps * hidden]`` in the order of ``taps``."""
        return torch.cat([self.layers[layer] for layer in taps], dim=-1)

    def truth(self, depth: int) -> Tensor:
        """int64 ``[roots, depth]``: the tokens that follow each root, -1 past the end."""
        padded = torch.tensor([*self.tokens, *[-1] * depth])
        first = torch.arange(self.roots.start, self.roots.stop)
        return padded[first[:, None] + 1 + torch.arange(depth)]


@torch.no_grad()
def replay_best(
    head: DraftHead,
    embedding: Tensor,
    lm_head: Tensor,
    text: TappedText,
    wiring: Wiring,
    depth: int,
) -> Tensor:
    """The best token of each depth at each root, int64 ``[roots, depth]``, on the CPU.

    Args:
        head: weights.
        embedding: the target's embedding ``[vocab, hidden]`` in the head's type.
        lm_head: the target's output matrix ``[vocab, hidden]``, likewise.
        text: what to draft.
        wiring: how the head is connected.
        depth: at most ``depth_of_all``.

    Raises:
        NonFiniteDraft: the head's logits hold NaN or infinity.
    """
    rows = torch.arange(text.roots.stop, device=embedding.device)
    shifted = (rows + wiring.row_shift).clamp(min=0)
    features = text.features(wiring.taps).to(embedding)[shifted.clamp(max=len(text.tokens) - 2)]
    fused = head.fuse(features[None])
    context = head.context_keys_values(fused, rows[None])
    found = []
    for start in range(text.roots.start, text.roots.stop, _ROOTS_AT_ONCE):
        at = rows[start : start + _ROOTS_AT_ONCE]
        last = last_rows(fused[0], at)
        hidden = _run_blocks(head, embedding, text, wiring, at, last, context, depth)
        # In two dimensions: a product of a cut tensor in three is a loop over its first one.
        logits = F.linear(hidden.flatten(0, 1), lm_head).float().unflatten(0, (len(at), -1))
        logits = _with_path(head, embedding, text, at, hidden, logits)
        if not torch.isfinite(logits).all():
            raise NonFiniteDraft(f"the draft head gave logits that are not finite ({wiring.name})")
        found.append(logits.argmax(-1).cpu())
    return torch.cat(found)


def depth_of_all(head: DraftHead) -> int:
    """Depth that the head reaches under every wiring."""
    return max(1, head.config.block_size - 1)


def _run_blocks(
    head: DraftHead,
    embedding: Tensor,
    text: TappedText,
    wiring: Wiring,
    at: Tensor,
    last: Tensor,
    context: Sequence[tuple[Tensor, Tensor]],
    depth: int,
) -> Tensor:
    """Rows ``[R, depth, hidden]`` for the roots at indices ``at``."""
    roots = torch.tensor(text.tokens, device=embedding.device)[at]
    block = head.block_input(roots, embedding, head.config.max_depth)
    if wiring.mask_token is not None:
        block[:, 1:] += embedding[wiring.mask_token] - _mask_vector(head, embedding)
    if wiring.masked_root:
        block[:, 0] += _mask_vector(head, embedding) - embedding[roots]
    block = head.bridged(block, embedding[roots], last)
    if wiring.causal:
        # Later slots change nothing.
        block = block[:, : wiring.first_slot + depth]
    count, slots, known = len(at), block.shape[1], context[0][0].shape[2]
    steps = torch.arange(slots, device=at.device)
    own = torch.ones(slots, slots, dtype=torch.bool, device=at.device)
    own = own.tril() if wiring.causal else own
    before = torch.arange(known, device=at.device) < at[:, None]
    visible = torch.cat(
        [before[:, None].expand(count, slots, known), own.expand(count, slots, slots)], dim=-1
    )
    hidden = head.run_block(block, at[:, None] + steps, _PlainAttention(context, visible))
    return hidden[:, wiring.first_slot : wiring.first_slot + depth]


class _PlainAttention:
    """Attention spelled out, over one text's context that all blocks share.

    Args:
        context: for each layer keys and values ``[1, kv_heads, T, dim]``.
        visible: bool ``[R, S, T + S]``; a slot sees itself, so no row is empty.
    """

    def __init__(self, context: Sequence[tuple[Tensor, Tensor]], visible: Tensor) -> None:
        self._context, self._visible = context, visible

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """``[R, S, heads * dim]``; see ``BlockContext``."""
        count, kv_heads = keys.shape[:2]
        cached_keys, cached_values = self._context[layer]
        keys = torch.cat([cached_keys.expand(count, -1, -1, -1), keys], dim=2)
        values = torch.cat([cached_values.expand(count, -1, -1, -1), values], dim=2)
        # [R, kv_heads, group, S, dim]: the query heads that read one key head.
        grouped = query.unflatten(1, (kv_heads, -1))
        scores = grouped @ keys[:, :, None].transpose(-1, -2) * query.shape[-1] ** -0.5
        hidden = ~self._visible[:, None, None]
        weights = scores.float().masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = weights.to(values.dtype) @ values[:, :, None]
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2)


def _mask_vector(head: DraftHead, embedding: Tensor) -> Tensor:
    token = head.config.mask_token_id
    return head.mask_embedding.to(embedding) if token is None else embedding[token]


def _with_path(
    head: DraftHead,
    embedding: Tensor,
    text: TappedText,
    at: Tensor,
    hidden: Tensor,
    logits: Tensor,
) -> Tensor:
    """Depth 1 given its parent, the root; deeper parents are not known when a draft is made."""
    if head.path is None:
        return logits
    roots = torch.tensor(text.tokens, device=embedding.device)[at]
    vectors = head.path.parent_vectors(embedding[roots], hidden[:, 0])
    logits[:, 0] += head.path.bias(vectors).float()
    return logits


def drafter_best(drafter: Drafter, text: TappedText, taps: Sequence[int], depth: int) -> Tensor:
    """The drafter's best token of each depth at each root, like ``replay_best``; -1 for none.

    The drafter is fed as the decode loop feeds it: row by row as they are committed.
    """
    features = text.features(taps)
    drafter.begin(0, text.tokens[: text.first_root + 1])
    best = torch.full((len(text.roots), depth), -1)
    seen = 0
    for row, root in enumerate(text.roots):
        drafter.observe(0, text.tokens[seen:root], features[seen:root])
        seen = root
        tokens = drafter.propose([0], [text.tokens[root]], depth)[0].tokens
        if tokens.size:
            best[row, : len(tokens)] = torch.tensor(tokens[:, 0].tolist())
    return best
