"""The frozen target as core's offline decoding wants it."""

from __future__ import annotations

import torch
from jetflow_core.offline import Rope
from torch import Tensor
from torch.nn import functional as F

from jetflow_train.target import FrozenTarget
from jetflow_train.target_layer import finish, project


class TargetStack:
    """A ``jetflow_core.offline.Stack``.

    Args:
        target: the target.
        compiled: fuse the small operations of layers. Each new shape is compiled, so this is for
            a GPU, where a decoder asks two: those of its step and of its pass over prompts.
    """

    def __init__(self, target: FrozenTarget, *, compiled: bool = False) -> None:
        self.target = target
        shape = target.shape
        self.num_layers, self.num_kv_heads = shape.num_layers, shape.num_kv_heads
        self.head_dim, self.max_positions = shape.head_dim, shape.max_positions
        self.stop_tokens = target.stop_tokens
        self._project = torch.compile(project, dynamic=False) if compiled else project
        self._finish = torch.compile(finish, dynamic=False) if compiled else finish

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return self.target.dtype

    def embed(self, tokens: Tensor) -> Tensor:
        """Hidden states ``[n, T, hidden]`` of int64 tokens ``[n, T]``."""
        return self.target.embedding[tokens]

    def rope(self, positions: Tensor) -> Rope:
        """Rotations at int64 ``positions`` ``[n, T]``."""
        return self.target.rope(positions)

    def project(self, layer: int, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[n, heads, T, dim]`` and keys, values ``[n, kv_heads, T, dim]``, rotated."""
        return self._project(x, self.target.layers[layer], rope, self.target.shape)

    def finish(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, from its input and its attention's result ``[n, T, heads * dim]``."""
        return self._finish(x, attended, self.target.layers[layer], self.target.shape)

    def logits(self, x: Tensor) -> Tensor:
        """Logits ``[n, vocab]`` of the last layer's output ``[n, hidden]``."""
        return F.linear(self.target.normed(x), self.target.lm_head)
