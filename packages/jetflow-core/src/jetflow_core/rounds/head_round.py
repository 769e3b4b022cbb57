"""The draft head within a round: its own pages beside the target's, one pass over all blocks.

The head's keys and values lie in pools of its own under the page numbers of the target's, so one
page table serves both. Committed rows are projected once, when they are committed. The block's rows
are written behind them as scratch, in the order of their slots, and attend by the same step that
the target's trees do: what a slot sees of its block are its ancestor words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from jetflow_core.fit import HeadMismatch, check_sizes
from jetflow_core.head.checkpoint import LoadedHead
from jetflow_core.head.layers import rotary
from jetflow_core.head.model import DraftHead
from jetflow_core.head.scores import score_temperature
from jetflow_core.rounds.draft import CommittedRows, DraftInputs
from jetflow_core.rounds.head_products import prepare_head
from jetflow_core.rounds.head_table import RoundTable
from jetflow_core.rounds.head_weights import fuse_head
from jetflow_core.rounds.ops import RoundOps
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack, LayerOps

MOST_DEPTHS = 63
"""Depths of a tree: what the steps of a round can walk and commit."""
MOST_SLOTS = 256
"""Slots of a block: what ancestor words can name."""


class HeadRound:
    """A ``RoundDrafter`` with a draft head.

    Args:
        head: weights, frozen; its matrices become views of fused ones.
        embedding: the target's embedding ``[vocab, hidden]`` in the head's type and device.
        lm_head: the target's output matrix ``[vocab, hidden]``, likewise.
        ops: the steps of a round.
        layer_ops: the steps of a layer.
        context: most committed rows of a request.
        depth: depths to draft, 1 to the head's own; None: the head's own.

    Raises:
        ValueError: ``depth`` is out of range, or the block has too many slots.

    ``HeadRound.fitted`` makes one and checks that head and target belong together.
    """

    reads_features = True

    def __init__(
        self,
        head: DraftHead,
        embedding: Tensor,
        lm_head: Tensor,
        *,
        ops: RoundOps,
        layer_ops: LayerOps,
        context: int,
        depth: int | None = None,
    ) -> None:
        config = head.config
        deepest = min(config.max_depth, MOST_DEPTHS)
        self.depth = deepest if depth is None else depth
        if not 1 <= self.depth <= deepest:
            raise ValueError(f"depth {depth} is out of range: this head drafts 1..{deepest}")
        self.scratch_rows = head.num_slots(self.depth)
        if self.scratch_rows > MOST_SLOTS:
            raise ValueError(
                f"a block of {self.scratch_rows} slots; at most {MOST_SLOTS} can be run"
            )
        self._head, self._config = head, config
        self._embedding, self._lm_head = embedding, lm_head
        self._ops, self._layer_ops = ops, layer_ops
        self._layers = fuse_head(head)
        positions = torch.arange(context + self.scratch_rows, device=embedding.device)
        cos, sin = rotary(positions, config.head_dim, config.rope_theta, embedding.dtype)
        half = config.head_dim // 2
        self._cos, self._sin = cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
        self._table = RoundTable(head, embedding, ops, layer_ops)
        self._ones = embedding.new_ones(config.hidden_size)

    @classmethod
    def fitted(
        cls, loaded: LoadedHead, stack: DecoderStack, ops: RoundOps, *, depth: int | None = None
    ) -> Self:
        """A drafter for a stack.

        Args:
            loaded: the head.
            stack: the target, tapped where the head wants it.
            ops: the steps of a round.
            depth: as in the class.

        Raises:
            HeadMismatch: the head was made for another target, or is of another type or device;
                with both values.
            ValueError: as in the class.
        """
        check_sizes(
            loaded.config,
            loaded.path,
            hidden_size=stack.hidden_size,
            vocab_size=stack.vocab_size,
            num_layers=stack.shape.num_layers,
        )
        weight = next(loaded.head.parameters())
        for what, wanted, found in (
            ("taps", loaded.config.target_layer_ids, stack.taps),
            ("type", weight.dtype, stack.dtype),
            ("device", weight.device, stack.device),
        ):
            if wanted != found:
                raise HeadMismatch(
                    f"the {what} of the head at {loaded.path}: {wanted}; of this stack: {found}"
                )
        return cls(
            loaded.head, stack.embed_tokens, stack.lm_head, ops=ops, layer_ops=stack.ops,
            context=stack.context_length, depth=depth,
        )  # fmt: skip

    @property
    def row_bytes(self) -> int:
        """See ``RoundDrafter``."""
        size = self._config.num_kv_heads * self._config.head_dim * self._embedding.element_size()
        return 2 * len(self._layers) * size

    @property
    def changes(self) -> Sequence[Tensor]:
        """See ``RoundDrafter``."""
        return (self._last,)

    def allocate(self, *, pages: int, page: int, slots: int) -> None:
        """See ``RoundDrafter``."""
        config, like = self._config, self._embedding
        shape = (len(self._layers), 2, pages, page, config.num_kv_heads, config.head_dim)
        self.pools = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self._page = page
        # The same in every round: starts and words of so many blocks.
        count = self.scratch_rows
        self._starts = torch.arange(slots + 1, dtype=torch.int32, device=like.device) * count
        self._words = self._block_words().repeat(slots, 1)
        self._last = like.new_zeros(slots, config.hidden_size)
        self._score_temperatures = torch.ones(slots, dtype=torch.float64, device=like.device)
        sizes = {"block": self.scratch_rows, "depth": self.depth, "slots": slots}
        fuse = self._head.fc.weight
        prepare_head(self._layer_ops, self._layers, self._lm_head, fuse, **sizes)

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams) -> None:
        """See ``RoundDrafter``."""
        self._last[slot].fill_(0.0)
        wanted = score_temperature(self._config, params.temperature)
        self._score_temperatures[slot].fill_(wanted)

    def move(self, source: int, goal: int) -> None:
        """See ``RoundDrafter``."""
        for tensor in (self._last, self._score_temperatures):
            tensor[goal].copy_(tensor[source])

    def absorb(self, rows: CommittedRows) -> None:
        """See ``RoundDrafter``."""
        fused = self._fused(rows.features)
        most = fused.shape[1]
        each = torch.arange(most, device=fused.device)
        slots = self._ops.tree_slots(
            rows.page_table, rows.starts, rows.counts, capacity=most, page=self._page
        ).flatten()
        behind = each >= rows.counts[:, None]
        positions = (rows.starts[:, None] + each).masked_fill(behind, 0).int().flatten()
        flat = fused.flatten(0, 1)
        for weights, (keys, values) in zip(self._layers, self.pools, strict=True):
            self._ops.norm_rope_kv_write(
                self._layer_ops.linear(flat, weights.context), positions, self._cos, self._sin,
                slots, keys, values, q_weight=weights.q_norm, k_weight=weights.k_norm,
                eps=self._config.rms_norm_eps,
            )  # fmt: skip
        newest = (rows.counts - 1).clamp(min=0).long()[:, None, None].expand(-1, 1, fused.shape[2])
        found = torch.where(
            (rows.counts > 0)[:, None], fused.gather(1, newest)[:, 0], self._last[rows.slots]
        )
        self._last[rows.slots] = found

    def _fused(self, features: Tensor) -> Tensor:
        """What ``DraftHead.fuse`` gives, ``[R, S, hidden]``, by the steps of a layer."""
        head, ops, eps = self._head, self._layer_ops, self._config.rms_norm_eps
        flat = features.flatten(0, 1)
        if self._config.normalize_taps:
            flat = ops.rms_norm(flat.view(-1, len(self._ones)), self._ones, eps).view(flat.shape)
        fused = ops.rms_norm(ops.linear(flat, head.fc.weight), head.hidden_norm.weight, eps)
        return fused.unflatten(0, features.shape[:2])

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        """See ``RoundDrafter``; depths past the head's own positions are never nodes."""
        head, config = self._head, self._config
        rows = head.depth_rows(self._run_blocks(inputs), self.depth)
        logits = self._layer_ops.linear(rows.flatten(0, 1), self._lm_head)
        tokens, scores = self._table.candidates(
            inputs.roots, rows, logits.unflatten(0, (-1, self.depth)),
            self._score_temperatures[inputs.slots],
        )  # fmt: skip
        left = config.max_position_embeddings - 1 - inputs.prefix_len
        beyond = torch.arange(self.depth, device=left.device) >= left[:, None]
        return tokens, scores.masked_fill(beyond[:, :, None, None], -torch.inf)

    def _run_blocks(self, inputs: DraftInputs) -> Tensor:
        """Hidden states ``[R, S, hidden]`` of all slots after the final norm."""
        head, ops, layer_ops, eps = (
            self._head,
            self._ops,
            self._layer_ops,
            self._config.rms_norm_eps,
        )
        requests, slots = inputs.roots.shape[0], self.scratch_rows
        block = head.block_input(inputs.roots, self._embedding, self.depth)
        roots = self._embedding[inputs.roots]
        x = head.bridged(block, roots, self._last[inputs.slots]).flatten(0, 1).contiguous()
        counts = inputs.live.int() * slots
        places = ops.tree_slots(
            inputs.page_table, inputs.prefix_len, counts, capacity=slots, page=self._page
        ).flatten()
        positions = self._positions(inputs)
        starts, words = self._starts[: requests + 1], self._words[: requests * slots]
        norms = [each.input_norm for each in self._layers[1:]] + [head.norm.weight]
        normed = layer_ops.rms_norm(x, self._layers[0].input_norm, eps)
        for weights, (keys, values), next_norm in zip(self._layers, self.pools, norms, strict=True):
            q = ops.norm_rope_kv_write(
                layer_ops.linear(normed, weights.qkv), positions, self._cos, self._sin, places,
                keys, values, q_weight=weights.q_norm, k_weight=weights.k_norm, eps=eps,
            )  # fmt: skip
            mixed = ops.tree_attention(
                q, keys, values, inputs.page_table, starts, inputs.prefix_len, words
            )
            change = layer_ops.linear(mixed.flatten(1), weights.output)
            normed = layer_ops.add_rms_norm(x, change, weights.block_norm, eps, x)
            inner = layer_ops.gate_up_silu(normed, weights.gate_up)
            change = layer_ops.linear(inner, weights.down)
            normed = layer_ops.add_rms_norm(x, change, next_norm, eps, x)
        return normed.view(requests, slots, -1)

    def _positions(self, inputs: DraftInputs) -> Tensor:
        """int32 ``[R * S]``; a causal head's slots of which nothing is used come no further."""
        slots = torch.arange(self.scratch_rows, device=inputs.roots.device)
        if self._config.causal:
            slots = torch.minimum(slots, inputs.depth_left[:, None])
        return (inputs.prefix_len[:, None] + slots).int().flatten()

    def _block_words(self) -> Tensor:
        """``[S, W]``: which slots of its block each slot sees."""
        count, device = self.scratch_rows, self._embedding.device
        chain = torch.arange(-1, count - 1, dtype=torch.int32, device=device)[None]
        words, _ = self._ops.pack_ancestors(chain, torch.full_like(chain[0, :1], count))
        # The last slot of a causal block sees all of it, as every slot of the others does.
        return words[0] if self._config.causal else words[0, -1:].repeat(count, 1)
