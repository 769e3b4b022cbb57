"""Drafting with a head: incremental keys and values, one block pass a round, candidates out.

Only newly committed rows are projected into the head's cache, and only when a draft is made: rows
observed in rounds without a draft wait as features.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jetflow_tree import Candidates
from torch import Tensor

from jetflow_core.few_rows import multiply_few_rows_fast, output_layer
from jetflow_core.head.context import KeysValues, OwnContexts
from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import draft_candidates


class NonFiniteDraft(ValueError):
    """The draft head gave logits that are not finite; the message names the request's slot."""


def _nothing() -> Candidates:
    return Candidates.marginal(np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0)))


class HeadDrafter:
    """A draft head at work for up to ``num_slots`` requests.

    Args:
        head: weights, frozen.
        embedding: the target's embedding ``[vocab, hidden]`` in the head's type and device.
        lm_head: the target's output matrix ``[vocab, hidden]``, likewise.
        num_slots: requests that may be drafted for at the same time.
        capacity: context rows kept for each; also bounded by the head's own position limit.

    Raises:
        ValueError: the target's matrices do not fit the head.
    """

    def __init__(
        self, head: DraftHead, embedding: Tensor, lm_head: Tensor, *, num_slots: int, capacity: int
    ) -> None:
        config = head.config
        wanted = (config.vocab_size, config.hidden_size)
        for name, matrix in (("embedding", embedding), ("lm_head", lm_head)):
            if tuple(matrix.shape) != wanted:
                raise ValueError(
                    f"the head was made for a target whose {name} is {wanted[0]} x {wanted[1]}; "
                    f"this target's is {matrix.shape[0]} x {matrix.shape[1]}"
                )
        self._head, self._embedding = head, embedding
        self._output = output_layer(lm_head)
        if embedding.device.type == "cpu":
            multiply_few_rows_fast(head)
        self.max_depth = config.max_depth
        self._capacity = min(capacity, config.max_position_embeddings)
        shape = (num_slots, config.num_kv_heads, self._capacity, config.head_dim)
        new = torch.zeros if embedding.device.type == "cpu" else torch.empty
        self._keys = [embedding.new_empty(0) for _ in head.layers]
        self._keys = [
            new(shape, dtype=embedding.dtype, device=embedding.device) for _ in head.layers
        ]
        self._values = [torch.zeros_like(keys) for keys in self._keys]
        self._last = embedding.new_zeros(num_slots, config.hidden_size)
        self._lengths = [0] * num_slots
        self._seen = [0] * num_slots
        self._waiting: list[list[Tensor]] = [[] for _ in range(num_slots)]

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        """Forgets what was in ``slot``; the new request's rows arrive through ``observe``."""
        self._lengths[slot] = self._seen[slot] = 0
        self._last[slot] = 0
        self._waiting[slot] = []

    def context_length(self, slot: int) -> int:
        """Committed rows observed for ``slot``: always one less than its committed tokens."""
        return self._seen[slot]

    def observe(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Takes newly committed rows.

        Args:
            slot: whose request.
            tokens: the rows' tokens.
            features: ``[len(tokens), taps * hidden]``, the target's outputs at these rows.
        """
        if features.shape != (len(tokens), self._head.config.feature_size):
            raise ValueError(
                f"features have shape {tuple(features.shape)}, expected "
                f"({len(tokens)}, {self._head.config.feature_size})"
            )
        self._seen[slot] += len(tokens)
        if self.depth_left(slot):
            self._waiting[slot].append(features)
        else:
            # Past the head's reach no draft will ever read them.
            self._waiting[slot] = []

    def depth_left(self, slot: int) -> int:
        """Deepest draft that the head's own position limit still allows for ``slot``."""
        return max(0, min(self.max_depth, self._capacity - 1 - self.context_length(slot)))

    @torch.no_grad()
    def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Candidates]:
        """Candidates for each slot's next tokens, from one pass of the head.

        Args:
            slots: requests to draft for.
            roots: their last committed tokens.
            depth: deepest depth wanted, 0..max_depth. A slot near the head's position limit gets
                fewer depths, none at the limit.

        Raises:
            ValueError: ``depth`` is out of range.
            NonFiniteDraft: the head's logits hold NaN or infinity.
        """
        if not 0 <= depth <= self.max_depth:
            raise ValueError(f"depth {depth} is out of range: this head drafts 0..{self.max_depth}")
        reach = [min(depth, self.depth_left(slot)) for slot in slots]
        live = [i for i, deep in enumerate(reach) if deep > 0]
        drafts = [_nothing() for _ in slots]
        if not live:
            return drafts
        for i in live:
            self._absorb(slots[i])
        deepest = max(reach[i] for i in live)
        made = self._draft([slots[i] for i in live], [roots[i] for i in live], deepest)
        for i, candidates in zip(live, made, strict=True):
            drafts[i] = candidates.truncate(reach[i])
        return drafts

    def _absorb(self, slot: int) -> None:
        """Projects the waiting rows of ``slot`` into the cache."""
        if not self._waiting[slot]:
            return
        features = torch.cat(self._waiting[slot])
        start, count = self._lengths[slot], features.shape[0]
        positions = torch.arange(start, start + count, device=features.device)[None]
        fused = self._head.fuse(features.to(self._embedding.dtype)[None])
        for layer, (k, v) in enumerate(self._head.context_keys_values(fused, positions)):
            self._keys[layer][slot, :, start : start + count] = k[0]
            self._values[layer][slot, :, start : start + count] = v[0]
        if count:
            self._last[slot] = fused[0, -1]
        self._lengths[slot] = start + count
        self._waiting[slot] = []

    def _draft(self, slots: list[int], roots: list[int], depth: int) -> list[Candidates]:
        head, device = self._head, self._embedding.device
        known = torch.tensor(roots, device=device)
        block = head.block_input(known, self._embedding, depth)
        block = head.bridged(block, self._embedding[known], self._last[slots])
        lengths = torch.tensor([self._lengths[slot] for slot in slots], device=device)
        positions = lengths[:, None] + torch.arange(block.shape[1], device=device)
        inside = head.block_mask(block.shape[1], device)
        hidden = head.run_block(block, positions, OwnContexts(self._context(slots), inside))
        rows = head.depth_rows(hidden, depth)
        return self._candidates_of(slots, roots, rows)

    def _context(self, slots: list[int]) -> list[list[KeysValues]]:
        """Each layer's keys and values, for each slot exactly those of its own context."""
        return [
            [(k[slot, :, : self._lengths[slot]], v[slot, :, : self._lengths[slot]])
             for slot in slots]
            for k, v in zip(self._keys, self._values, strict=True)
        ]  # fmt: skip

    def _candidates_of(self, slots: list[int], roots: list[int], rows: Tensor) -> list[Candidates]:
        """Candidates of each slot, from its rows ``[R, D, hidden]``."""
        logits = self._output(rows).float()
        finite = torch.isfinite(logits.amax(-1)).all(-1)
        if not finite.all():
            bad = [slot for slot, ok in zip(slots, finite.tolist(), strict=True) if not ok]
            raise NonFiniteDraft(f"the draft head gave logits that are not finite (slots {bad})")
        known = torch.tensor(roots, device=logits.device)
        tokens, table = draft_candidates(self._head, self._embedding, known, rows, logits)
        tokens_cpu, table_cpu = tokens.cpu().numpy(), table.double().cpu().numpy()
        bad = [slot for slot, rows in zip(slots, table_cpu, strict=True) if np.isnan(rows).any()]
        if bad:
            raise NonFiniteDraft(f"the path term gave scores that are not finite (slots {bad})")
        return [Candidates(tokens=tokens_cpu[i], log_probs=table_cpu[i]) for i in range(len(slots))]
