"""The causal parallel draft head: one pass over a block of mask slots gives logits for every depth.

The fused target features of the context enter each layer's keys and values; the block is
``[root, MASK, MASK, ...]``; slot d predicts depth d (or d + 1 with ``draft_shift``). Embeddings and
lm_head are the target's own and frozen, so they are arguments here and never part of the head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from jetflow_core.head.bridge import InputBridge
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.context import BlockContext, KeysValues
from jetflow_core.head.layers import HeadLayer, RMSNorm, rotary, unit_rms
from jetflow_core.head.path import PathTerm


class DraftHead(nn.Module):
    """Weights and the three steps of a draft head: fuse, project the context, run a block.

    Parameter names are those of published heads: ``fc``, ``hidden_norm``, ``layers.N``, ``norm``.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.feature_size, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(HeadLayer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        if config.learned_mask:
            self.mask_embedding = nn.Parameter(torch.zeros(config.hidden_size))
        if config.depth_offset_rows:
            self.depth_offsets = nn.Parameter(
                torch.zeros(config.depth_offset_rows, config.hidden_size)
            )
        self.bridge = InputBridge(config.hidden_size) if config.input_bridge else None
        self.path = PathTerm(config) if config.path_rank else None

    def fuse(self, features: Tensor) -> Tensor:
        """Fused context rows ``[..., hidden]`` from target features ``[..., taps * hidden]``."""
        config = self.config
        if config.normalize_taps:
            taps = features.unflatten(-1, (len(config.target_layer_ids), config.hidden_size))
            features = unit_rms(taps, config.rms_norm_eps).flatten(-2)
        fused: Tensor = self.hidden_norm(self.fc(features))
        return fused

    def context_keys_values(self, fused: Tensor, positions: Tensor) -> list[KeysValues]:
        """Keys and values of context rows, one pair a layer.

        Args:
            fused: ``[R, T, hidden]`` from ``fuse``.
            positions: int64 ``[R, T]``, absolute.

        Returns:
            For each layer two tensors ``[R, kv_heads, T, head_dim]``.
        """
        rope = rotary(positions, self.config.head_dim, self.config.rope_theta, fused.dtype)
        return [layer.context_keys_values(fused, rope) for layer in self._layers()]

    def block_input(self, roots: Tensor, embedding: Tensor, depth: int) -> Tensor:
        """The block's input rows ``[R, slots, hidden]``: the root's embedding, then mask slots.

        Args:
            roots: int64 ``[R]``, the last committed tokens.
            embedding: the target's embedding ``[vocab, hidden]``.
            depth: deepest depth wanted; the block is cut there (a causal head's earlier rows do
                not change by it).
        """
        slots = self.num_slots(depth)
        first = embedding[roots].unsqueeze(1)
        if self.config.mask_token_id is None:
            mask = self.mask_embedding.to(first.dtype)
        else:
            mask = embedding[self.config.mask_token_id]
        rest = mask.expand(roots.shape[0], slots - 1, -1)
        block = torch.cat([first, rest], dim=1)
        if self.config.depth_offset_rows:
            block = block + self.depth_offsets[:slots].to(block.dtype)
        return block

    def bridged(self, block: Tensor, roots: Tensor, last: Tensor) -> Tensor:
        """``block`` with what a head with an input bridge adds to every slot; else as it is.

        Args:
            block: ``[R, S, hidden]`` from ``block_input``.
            roots: ``[R, hidden]``, embeddings of the roots.
            last: ``[R, hidden]``, the last fused row of each context; zeros without a context.
        """
        return block if self.bridge is None else block + self.bridge(roots, last).to(block.dtype)

    def num_slots(self, depth: int) -> int:
        """Slots that a block of ``depth`` needs; a bidirectional head runs its whole block."""
        if not self.config.causal:
            return self.config.block_size
        return depth + self.config.first_slot

    def block_mask(self, slots: int, device: torch.device) -> Tensor:
        """Bool ``[slots, slots]``: which slots (columns) a slot (row) sees."""
        mask = torch.ones(slots, slots, dtype=torch.bool, device=device)
        return mask.tril() if self.config.causal else mask

    def run_block(self, block: Tensor, positions: Tensor, context: BlockContext) -> Tensor:
        """Hidden states of the block's slots after the final norm, ready for the target's lm_head.

        Args:
            block: ``[R, S, hidden]`` from ``block_input``.
            positions: int64 ``[R, S]``; slot j sits at context length + j.
            context: what the block attends to besides itself, and under which mask.

        Returns:
            ``[R, S, hidden]``.
        """
        rope = rotary(positions, self.config.head_dim, self.config.rope_theta, block.dtype)
        for number, layer in enumerate(self._layers()):
            q, k, v = layer.block_keys_values(block, rope)
            block = layer.finish(block, context.attend(number, q, k, v))
        out: Tensor = self.norm(block)
        return out

    def depth_rows(self, hidden: Tensor, depth: int) -> Tensor:
        """The rows ``[R, depth, hidden]`` of ``run_block`` that predict depths 1..depth."""
        first = self.config.first_slot
        return hidden[:, first : first + depth]

    def _layers(self) -> list[HeadLayer]:
        return [layer for layer in self.layers if isinstance(layer, HeadLayer)]
