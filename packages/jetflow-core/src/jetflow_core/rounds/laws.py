"""What requests make of logits before a token is picked, on the device: biases, bans and cuts.

The steps and their order are those of ``jetflow_core.picker.TokenPicker``, row by row the same:
what is said there of ties and of the nucleus holds here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from jetflow_core.sampling import SamplingParams

BIASES = 64
"""Biased tokens of a request that the device knows."""
_ROWS = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Picks:
    """What the picks of a round's requests need; the rest is left out of the round."""

    drawn: bool = False
    """Somebody's temperature is above 0."""
    edited: bool = False
    """Somebody biases tokens, or may not stop yet."""
    cut: bool = False
    """Somebody draws from the best tokens only; ``drawn`` as well then."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Laws:
    """One line a slot, tensors that stay where they are."""

    top_k: Tensor
    """int32 ``[slots]``; 0: all."""
    top_p: Tensor
    """float64 ``[slots]``; 1: all."""
    min_p: Tensor
    """float64 ``[slots]``; 0: all."""
    may_stop: Tensor
    """int32 ``[slots]``: the first position that a stop token may come at."""
    biases: Tensor
    """int32 ``[slots]``: how many of its biases are meant."""
    bias_ids: Tensor
    """int64 ``[slots, BIASES]``."""
    bias_values: Tensor
    """float64 ``[slots, BIASES]``."""

    @classmethod
    def empty(cls, slots: int, device: torch.device) -> Self:
        """Nobody asks for anything.

        Args:
            slots: requests held at once.
            device: where the tensors are.
        """

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=device)

        return cls(
            top_k=zeros(dtype=torch.int32),
            top_p=zeros(dtype=torch.float64) + 1.0,
            min_p=zeros(dtype=torch.float64),
            may_stop=zeros(dtype=torch.int32),
            biases=zeros(dtype=torch.int32),
            bias_ids=zeros(BIASES, dtype=torch.int64),
            bias_values=zeros(BIASES, dtype=torch.float64),
        )

    def begin(self, slot: int, params: SamplingParams, prompt: int) -> None:
        """A request starts to decode; by the host, between rounds.

        Args:
            slot: its own.
            params: its rules, with at most ``BIASES`` biased tokens.
            prompt: tokens of its prompt.
        """
        # Always the best token: what cuts the others off changes nothing.
        drawn = not params.is_greedy
        for tensor, value in (
            (self.top_k, params.top_k if drawn else 0),
            (self.top_p, params.top_p if drawn else 1.0),
            (self.min_p, params.min_p if drawn else 0.0),
            (self.may_stop, prompt + params.min_new_tokens),
            (self.biases, len(params.logit_bias)),
        ):
            tensor[slot].fill_(value)
        for place, (token, bias) in enumerate(params.logit_bias.items()):
            self.bias_ids[slot, place].fill_(token)
            self.bias_values[slot, place].fill_(bias)

    def move(self, source: int, goal: int) -> None:
        """The request in one slot goes to another; by the host, between rounds."""
        for tensor in (
            self.top_k, self.top_p, self.min_p, self.may_stop, self.biases, self.bias_ids,
            self.bias_values,
        ):  # fmt: skip
            tensor[goal].copy_(tensor[source])

    def edited(self, logits: Tensor, owners: Tensor, positions: Tensor, stops: Tensor) -> Tensor:
        """Logits with biases, and without stop tokens where it is too early for them.

        Args:
            logits: ``[T, V]``.
            owners: int64 ``[T]``: whose row it is.
            positions: int32 ``[T]``, of the rows themselves.
            stops: int32 ``[slots, STOPS]``, filled up with -1.

        Returns:
            ``[T, V]`` of at least float32.
        """
        wide = logits if logits.dtype == torch.float64 else logits.float()
        meant = torch.arange(BIASES, device=logits.device) < self.biases[owners, None]
        bias = self.bias_values[owners].to(wide.dtype)
        # Each id is added to once: what is not meant adds 0, wherever it points.
        wide = wide.scatter_add(1, self.bias_ids[owners], bias.masked_fill(~meant, 0.0))
        early = (positions + 1 < self.may_stop[owners])[:, None]
        own = stops[owners].long()
        # Who fills up points to a stop token, or to nobody's first one.
        ids = torch.where(own < 0, own[:, :1], own)
        banned = early & (ids >= 0)
        ids = ids.clamp(min=0)
        return wide.scatter(1, ids, wide.gather(1, ids).masked_fill(banned, -torch.inf))

    def cut(self, logits: Tensor, owners: Tensor, temperatures: Tensor) -> Tensor:
        """Logits with all tokens that ``top_k``, ``top_p`` and ``min_p`` leave out at -inf.

        Args:
            logits: ``[T, V]``.
            owners: int64 ``[T]``.
            temperatures: float32 ``[T]``; a row of 0 is left alone.

        Returns:
            ``[T, V]`` of the logits' type.
        """
        # Sorting all rows at once would take many times the memory of the logits.
        parts: Sequence[Tensor] = [
            self._cut(some, whose, heat)
            for some, whose, heat in zip(
                *(each.split(_ROWS) for each in (logits, owners, temperatures)), strict=True
            )
        ]
        return torch.cat(list(parts))

    def _cut(self, logits: Tensor, owners: Tensor, temperatures: Tensor) -> Tensor:
        # Of equal logits the lower id comes first, and so is kept.
        best, order = logits.double().sort(dim=1, descending=True, stable=True)
        ranks = torch.arange(best.shape[1], device=best.device)
        count = self.top_k[owners, None]
        kept = (ranks < count) | (count == 0)
        heat = temperatures.double()[:, None]
        drawn = heat > 0
        scaled = (best - best[:, :1]) / torch.where(drawn, heat, 1.0)
        scaled = scaled.masked_fill(~kept, -torch.inf)
        mass = (scaled - scaled.logsumexp(1, keepdim=True)).exp().cumsum(1)
        part = self.top_p[owners, None]
        kept &= (ranks <= (mass < part).sum(1, keepdim=True)) | (part >= 1.0)
        kept &= scaled >= self.min_p[owners, None].log()
        kept |= ~drawn
        return logits.masked_fill(~torch.zeros_like(kept).scatter(1, order, kept), -torch.inf)
