"""What offline decoding asks of a target; any object of the right shape fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

Rope = tuple[Tensor, Tensor]
"""Cosines and sines ``[n, 1, T, head_dim]``."""


class Stack(Protocol):
    """A decoder in pieces, so that its caller keeps the keys and values."""

    @property
    def num_layers(self) -> int:
        """Decoder layers."""

    @property
    def num_kv_heads(self) -> int:
        """Heads of keys and values."""

    @property
    def head_dim(self) -> int:
        """Values of a head."""

    @property
    def max_positions(self) -> int:
        """Longest sequence in tokens."""

    @property
    def stop_tokens(self) -> Sequence[int]:
        """Tokens that end an answer."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Hidden states ``[n, T, hidden]`` of int64 tokens ``[n, T]``."""

    def rope(self, positions: Tensor) -> Rope:
        """Rotations at int64 ``positions`` ``[n, T]``."""

    def project(self, layer: int, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor, Tensor]:
        """Queries ``[n, heads, T, dim]`` and keys, values ``[n, kv_heads, T, dim]``, rotated."""

    def finish(self, layer: int, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output, from its input and its attention's result ``[n, T, heads * dim]``."""

    def logits(self, x: Tensor) -> Tensor:
        """Logits ``[n, vocab]`` of the last layer's output ``[n, hidden]``."""
