"""What a round remembers of its requests: tensors that stay where they are, one line a slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

STOPS = 16
"""Stop tokens of a request that the device knows. Others are seen by the host, a round later."""
NO_TOKEN = -1
RECORD = ("count", "accepted", "rows", "broken", "valid")
"""The first columns of a round's record; its tokens follow."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RequestLines:
    """As ``RoundLines`` says."""

    live: Tensor
    roots: Tensor
    prefix_len: Tensor
    remaining: Tensor
    stops: Tensor
    record: Tensor


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RoundState:
    """The requests in all slots."""

    page_table: Tensor
    """int32 ``[slots, max_pages]``."""
    budgets: Tensor
    """int32 ``[slots]``: rows of the next tree, the root included, at least 1."""
    roots: Tensor
    """int32 ``[slots]``: the last committed token."""
    prefix_len: Tensor
    """int32 ``[slots]``: committed rows of the cache, all committed tokens but the root."""
    remaining: Tensor
    """int32 ``[slots]``: tokens that may still come."""
    temperatures: Tensor
    """float32 ``[slots]``; 0 is greedy."""
    seeds: Tensor
    """int64 ``[slots]``, the bits of an unsigned number."""
    stops: Tensor
    """int32 ``[slots, STOPS]``, filled up with -1."""
    live: Tensor
    """bool ``[slots]``: whether a request decodes here; a round takes it away at an end."""
    record: Tensor
    """int32 ``[slots, 5 + S]``: what the last round did, see ``RECORD``: tokens committed, drafted
    rows accepted, rows verified, whether the walk met NaN, whether the draft was in contract, and
    the committed tokens. All zero for a slot that was not live."""

    @classmethod
    def empty(cls, *, slots: int, max_pages: int, steps: int, device: torch.device) -> Self:
        """No request in any slot.

        Args:
            slots: requests held at once.
            max_pages: width of the page table.
            steps: S, most tokens that one round commits.
            device: where they go.
        """

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(slots, *shape, dtype=dtype, device=device)

        return cls(
            page_table=zeros(max_pages),
            budgets=zeros() + 1,
            roots=zeros(),
            prefix_len=zeros(),
            remaining=zeros(),
            temperatures=zeros(dtype=torch.float32),
            seeds=zeros(dtype=torch.int64),
            stops=zeros(STOPS) + NO_TOKEN,
            live=zeros(dtype=torch.bool),
            record=zeros(len(RECORD) + steps),
        )

    def lines(self, count: int) -> RequestLines:
        """The first ``count`` slots, as the end of a round changes them."""
        return RequestLines(
            live=self.live[:count],
            roots=self.roots[:count],
            prefix_len=self.prefix_len[:count],
            remaining=self.remaining[:count],
            stops=self.stops[:count],
            record=self.record[:count],
        )

    @property
    def changes(self) -> tuple[Tensor, ...]:
        """What a round changes for the next one."""
        return (self.roots, self.prefix_len, self.remaining, self.live)

    def begin(
        self,
        slot: int,
        *,
        root: int,
        prefix_len: int,
        remaining: int,
        temperature: float,
        seed: int,
        stops: Sequence[int],
    ) -> None:
        """A request whose prompt is in the cache starts to decode; by the host, between rounds.

        Args:
            slot: an idle one.
            root: its last token.
            prefix_len: its committed rows.
            remaining: tokens that it may get, at least 1.
            temperature: 0 or more.
            seed: 0 to 2**64 - 1.
            stops: tokens that end it; the first ``STOPS`` are known to the device.
        """
        known = [*stops][:STOPS]
        for tensor, value in (
            (self.roots, root),
            (self.prefix_len, prefix_len),
            (self.remaining, remaining),
            (self.temperatures, temperature),
            (self.seeds, seed - 2**64 if seed >= 2**63 else seed),
            (self.live, True),
        ):
            # A fill takes its number along: nothing is copied from the host, nothing waits.
            tensor[slot].fill_(value)
        self.stops[slot].fill_(NO_TOKEN)
        for place, token in enumerate(known):
            self.stops[slot, place].fill_(token)

    def move(self, source: int, goal: int) -> None:
        """The request in one slot goes to another, idle one; by the host, between rounds."""
        own = (self.roots, self.prefix_len, self.remaining, self.temperatures, self.seeds)
        for tensor in (*own, self.stops, self.live):
            tensor[goal].copy_(tensor[source])
        self.end(source)

    def end(self, slot: int) -> None:
        """The slot's next rounds have no rows; by the host, between rounds."""
        self.live[slot].fill_(False)
