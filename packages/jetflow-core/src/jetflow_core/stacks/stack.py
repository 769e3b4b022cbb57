"""A decoder over packed rows: fused weights, paged keys and values, taps taken in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from jetflow_core.stacks.experts import Mix, mix_for, route
from jetflow_core.stacks.ops import Attend, LayerOps
from jetflow_core.stacks.passes import KVPools, PackedRows
from jetflow_core.stacks.rope import RopeTables
from jetflow_core.stacks.shape import StackShape
from jetflow_core.stacks.torch_ops import TorchOps
from jetflow_core.stacks.weights import (
    DenseWeights,
    ExpertWeights,
    LayerWeights,
    StackWeights,
    products_of,
)


class DecoderStack:
    """A target that has no state: caches, page tables and masks are the caller's.

    A pass has one shape for one number of rows and waits for nothing, so a CUDA graph can hold it
    if its operations and its attention can be held.

    Attributes:
        shape: Sizes.
        weights: All weights.
        rope: Angles of the positions.
        ops: The operations of its layers.
        taps: Layers whose own outputs make the features, in this order.
        eos_token_ids: Tokens that end an answer.
    """

    def __init__(
        self,
        shape: StackShape,
        weights: StackWeights,
        rope: RopeTables,
        *,
        ops: LayerOps | None = None,
        taps: Sequence[int] = (),
        eos_token_ids: Sequence[int] = (),
        choose_mix: Callable[[int, ExpertWeights], Mix] = mix_for,
    ) -> None:
        """Put together; see `load_stack`, `stack_of_model` and `random_stack`.

        Args:
            shape: Sizes.
            weights: Of these sizes.
            rope: At most `shape.max_positions` lines.
            ops: Operations of the layers; None: those of plain torch.
            taps: Layers whose outputs make the features, each at most once.
            eos_token_ids: Tokens that end an answer.
            choose_mix: How the experts of a layer are computed for a number of rows.

        Raises:
            ValueError: a tap is no layer, or is there twice.
        """
        self.shape, self.weights, self.rope = shape, weights, rope
        self.ops: LayerOps = TorchOps() if ops is None else ops
        self.taps = checked_taps(taps, shape.num_layers)
        self.eos_token_ids = tuple(eos_token_ids)
        self._choose_mix = choose_mix
        self._places = {layer: place for place, layer in enumerate(self.taps)}
        self._prepared: set[int] = set()

    @property
    def hidden_size(self) -> int:
        """Width of a layer's output."""
        return self.shape.hidden_size

    @property
    def vocab_size(self) -> int:
        """Rows of `lm_head`, padding included."""
        return self.shape.vocab_size

    @property
    def context_length(self) -> int:
        """Positions that can be looked up: tokens of prompt and answer together."""
        return self.rope.positions

    @property
    def feature_size(self) -> int:
        """Width of a feature row: taps times hidden size."""
        return len(self.taps) * self.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, pools, features and logits."""
        return self.weights.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.weights.device

    @property
    def embed_tokens(self) -> Tensor:
        """Input embeddings `[vocab, hidden]`."""
        return self.weights.embed_tokens

    @property
    def lm_head(self) -> Tensor:
        """Output embeddings `[vocab, hidden]`, the same tensor as the input's if tied."""
        return self.weights.lm_head

    @torch.no_grad()
    def forward(
        self, rows: PackedRows, pools: KVPools, attend: Attend, features: Tensor | None = None
    ) -> Tensor:
        """One pass over packed rows.

        Args:
            rows: What is run, and where its keys and values go.
            pools: Keys and values of all layers, written at `rows.slots`.
            attend: The attention of this pass.
            features: `[T, feature_size]` in the stack's type: receives the outputs of the tapped
                layers side by side. May be wider in memory (any row stride). None only if
                nothing is tapped.

        Returns:
            `[T, hidden]`, after the final norm, for `logits`.

        Raises:
            ValueError: pools or features do not fit the stack.
        """
        pools.check(self.shape, self.dtype)
        self._check_features(features, rows.count)
        eps = self.shape.rms_norm_eps
        x = self.weights.embed_tokens[rows.tokens]
        normed = self.ops.rms_norm(x, self.weights.layers[0].input_norm, eps)
        norms = [each.input_norm for each in self.weights.layers[1:]] + [self.weights.norm]
        for layer, (weights, next_norm) in enumerate(zip(self.weights.layers, norms, strict=True)):
            change = self._attention(layer, weights, normed, rows, pools, attend)
            # A tapped layer's output lies in the features: it must stay as it is from there on.
            total = torch.empty_like(change) if layer - 1 in self._places else x
            normed = self.ops.add_rms_norm(x, change, weights.mlp_norm, eps, total)
            change = self._mlp(weights.mlp, normed)
            x = self._tapped(layer, total, features)
            normed = self.ops.add_rms_norm(total, change, next_norm, eps, x)
        return normed

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        """`[T, vocab]` in the stack's type, of hidden states `[T, hidden]` after the final norm."""
        return self.ops.linear(hidden, self.weights.lm_head)

    def prepare(self, *rows: int) -> None:
        """Tell the operations of the products of passes, before such passes.

        Args:
            rows: Of a pass each; of the same number they are told once.
        """
        told = [count for count in rows if count not in self._prepared]
        if told:
            self._prepared.update(told)
            self.ops.prepare(told, *products_of(self.weights))

    def _attention(
        self,
        layer: int,
        weights: LayerWeights,
        normed: Tensor,
        rows: PackedRows,
        pools: KVPools,
        attend: Attend,
    ) -> Tensor:
        qkv = self.ops.linear(normed, weights.qkv, weights.qkv_bias)
        q = self.ops.norm_rope_kv_write(
            qkv, rows.positions, self.rope.cos, self.rope.sin, rows.slots,
            pools.keys[layer], pools.values[layer],
            q_weight=weights.q_norm, k_weight=weights.k_norm, eps=self.shape.rms_norm_eps,
        )  # fmt: skip
        mixed = attend(layer, q).flatten(1)
        return self.ops.linear(mixed, weights.output, weights.output_bias)

    def _mlp(self, mlp: DenseWeights | ExpertWeights, normed: Tensor) -> Tensor:
        if isinstance(mlp, DenseWeights):
            return self.ops.linear(self.ops.gate_up_silu(normed, mlp.gate_up), mlp.down)
        routes = route(self.ops.linear(normed, mlp.router), mlp)
        mix = self._choose_mix(normed.shape[0], mlp)
        return mix(normed, routes, mlp, self.ops.silu_mul)

    def _tapped(self, layer: int, total: Tensor, features: Tensor | None) -> Tensor:
        """Where the output of a layer goes: into the features, or over its input."""
        place = self._places.get(layer)
        if place is None or features is None:
            return total
        width = self.hidden_size
        return features[:, place * width : (place + 1) * width]

    def _check_features(self, features: Tensor | None, rows: int) -> None:
        wanted = (rows, self.feature_size)
        if features is None:
            if self.taps:
                raise ValueError(f"layers {list(self.taps)} are tapped, so features must be given")
        elif tuple(features.shape) != wanted or features.dtype != self.dtype:
            raise ValueError(
                f"features must be {list(wanted)} {self.dtype}, got {list(features.shape)} "
                f"{features.dtype}"
            )


def checked_taps(taps: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The taps, if each is a layer and none is there twice.

    Raises:
        ValueError: naming the one that is not.
    """
    for tap in taps:
        if not 0 <= tap < num_layers:
            raise ValueError(f"tap {tap} is no layer of a model with layers 0 to {num_layers - 1}")
    if len(set(taps)) != len(taps):
        raise ValueError(f"taps {list(taps)} are not distinct")
    return tuple(taps)
