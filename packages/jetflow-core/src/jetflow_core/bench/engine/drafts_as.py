"""A drafter that does all that another one does, for those that change what it proposes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from jetflow_core.rounds import CommittedRows, DraftInputs, RoundDrafter
from jetflow_core.sampling import SamplingParams


class DraftsAs:
    """A ``RoundDrafter`` that hands everything on to another one.

    Args:
        drafter: the other.
    """

    def __init__(self, drafter: RoundDrafter) -> None:
        self._drafter = drafter

    @property
    def depth(self) -> int:
        """See ``RoundDrafter``; so are all others."""
        return self._drafter.depth

    @property
    def row_bytes(self) -> int:
        """Bytes of one committed row."""
        return self._drafter.row_bytes

    @property
    def scratch_rows(self) -> int:
        """Rows behind the committed ones."""
        return self._drafter.scratch_rows

    @property
    def reads_features(self) -> bool:
        """Whether ``absorb`` wants features."""
        return self._drafter.reads_features

    @property
    def changes(self) -> Sequence[Tensor]:
        """What changes a proposal."""
        return self._drafter.changes

    def allocate(self, *, pages: int, page: int, slots: int) -> None:
        """Pools and states of the drafter."""
        self._drafter.allocate(pages=pages, page=page, slots=slots)

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams) -> None:
        """A request takes the slot."""
        self._drafter.begin(slot, tokens, params)

    def move(self, source: int, goal: int) -> None:
        """A request changes its slot."""
        self._drafter.move(source, goal)

    def absorb(self, rows: CommittedRows) -> None:
        """Takes in committed rows."""
        self._drafter.absorb(rows)

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        """Candidates of the next depths."""
        return self._drafter.propose(inputs)
