"""What a round asks of whoever drafts on the device, and the one who never drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jetflow_core.sampling import SamplingParams


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CommittedRows:
    """Rows of the target's cache that were just committed, for R requests."""

    slots: Tensor
    """int64 ``[R]``: whose they are."""
    page_table: Tensor
    """int32 ``[R, max_pages]``."""
    starts: Tensor
    """int32 ``[R]``: position of the first of them."""
    counts: Tensor
    """int32 ``[R]``, 0 to S."""
    features: Tensor
    """``[R, S, F]``: the target's features at them; anything behind each count."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DraftInputs:
    """Where R requests stand when a draft is made."""

    slots: Tensor
    """int64 ``[R]``."""
    page_table: Tensor
    """int32 ``[R, max_pages]``."""
    prefix_len: Tensor
    """int32 ``[R]``: committed rows, 0 for a padding request."""
    roots: Tensor
    """int32 ``[R]``: the last committed tokens."""
    live: Tensor
    """bool ``[R]``: False for padding requests, of which nothing may be written."""
    depth_left: Tensor
    """int32 ``[R]``: deepest depth of which anything is used, 0 or more."""


class RoundDrafter(Protocol):
    """Proposes candidates within a round: static shapes, no host wait."""

    @property
    def depth(self) -> int:
        """D, the depths of every proposal; 0: nothing is ever drafted."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one committed row in the drafter's own pools."""

    @property
    def scratch_rows(self) -> int:
        """Rows behind the committed ones that a proposal needs in the drafter's own pools."""

    @property
    def reads_features(self) -> bool:
        """Whether ``absorb`` wants features."""

    @property
    def changes(self) -> Sequence[Tensor]:
        """Tensors, pools left out, after whose change ``propose`` would do something else."""

    def allocate(self, *, pages: int, page: int, slots: int) -> None:
        """Makes the drafter's own pools and states; called once, before anything else."""

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams) -> None:
        """A request takes the slot, with these tokens so far; by the host, between rounds."""

    def move(self, source: int, goal: int) -> None:
        """The request in one slot goes to another, idle one; by the host, between rounds."""

    def absorb(self, rows: CommittedRows) -> None:
        """Takes in committed rows, in the order of their positions."""

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        """Candidates of the next depths.

        Returns:
            int32 ``[R, D, K]``, distinct within a depth, and log-probabilities ``[R, D, P, K]``
            with P = 1 or K, -inf where there is none.
        """


class NoDraft:
    """Plain decoding: trees are their roots."""

    depth, row_bytes, scratch_rows, reads_features = 0, 0, 0, False

    @property
    def changes(self) -> Sequence[Tensor]:
        """Nothing."""
        return ()

    def allocate(self, *, pages: int, page: int, slots: int) -> None:
        """Nothing."""

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams) -> None:
        """Nothing."""

    def move(self, source: int, goal: int) -> None:
        """Nothing."""

    def absorb(self, rows: CommittedRows) -> None:
        """Nothing."""

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        """No depth."""
        requests, device = inputs.roots.shape[0], inputs.roots.device
        tokens = torch.empty(requests, 0, 1, dtype=torch.int32, device=device)
        return tokens, torch.empty(requests, 0, 1, 1, device=device)
