"""One program for each size of a round: captured as a CUDA graph, or run as it is on a CPU.

Sizes that are captured are rounded up to few, since each capture takes a moment and some memory.
Where nothing is captured a round has exactly the rows that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Literal

import torch
from torch import Tensor

from jetflow_core.limits import MAX_BUDGET
from jetflow_core.offline.programs import Programs
from jetflow_core.rounds.prefill import PromptSize
from jetflow_core.rounds.round import RoundSize

_FINE_ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_COARSE_STEP = 128
_LEAST_PROMPT_ROWS = 128


class RoundPrograms:
    """Runs programs by size, and tells which there are.

    Args:
        device: where the programs' tensors are.
        captured: whether programs become graphs; needs a CUDA device.
        slots: requests held at once.
        pages: columns of the page table.
    """

    def __init__(self, device: torch.device, *, captured: bool, slots: int, pages: int) -> None:
        self._captured, self._slots, self._pages = captured, slots, pages
        self._programs = Programs(device)
        self._runs: dict[Hashable, int] = {}

    @property
    def mode(self) -> Literal["graphs", "eager"]:
        """Whether programs are captured."""
        return "graphs" if self._captured else "eager"

    @property
    def runs(self) -> dict[Hashable, int]:
        """Every program by its key, with how often it ran."""
        return dict(self._runs)

    def size(self, *, requests: int, rows: int, tree_rows: int, pages: int) -> RoundSize:
        """The size of a round that holds so much.

        Args:
            requests: slots in use, the highest one plus 1.
            rows: sum of the live budgets.
            tree_rows: the largest of them.
            pages: columns of the page table in use.
        """
        if not self._captured:
            return RoundSize(requests=requests, rows=rows, tree_rows=tree_rows, pages=pages)
        return RoundSize(
            requests=min(_power_of_two(requests), self._slots),
            rows=rows_bucket(rows),
            tree_rows=min(_power_of_two(tree_rows), MAX_BUDGET),
            pages=self._pages,
        )

    def prompt_size(
        self,
        *,
        requests: int,
        rows: int,
        longest: int,
        most_rows: int,
        most_longest: int,
        pages: int,
    ) -> PromptSize:
        """The size of a pass over prompts that holds so much.

        Args:
            requests: prompts that take part.
            rows: of all of them.
            longest: rows of the longest chunk.
            most_rows: rows of a pass at most.
            most_longest: rows of a chunk at most.
            pages: columns of the page table in use.
        """
        if not self._captured:
            return PromptSize(requests=requests, rows=rows, longest=longest, pages=pages)
        return PromptSize(
            requests=min(_power_of_two(requests), self._slots),
            rows=min(max(_power_of_two(rows), _LEAST_PROMPT_ROWS), most_rows),
            longest=min(max(_power_of_two(longest), _LEAST_PROMPT_ROWS), most_longest),
            pages=self._pages,
        )

    def run(self, key: Hashable, program: Callable[[], None], changes: Sequence[Tensor]) -> None:
        """Runs a program.

        Args:
            key: the same one always names the same program.
            program: reads and writes tensors that stay where they are.
            changes: tensors after whose change it would do something else.
        """
        self._runs[key] = self._runs.get(key, 0) + 1
        if self._captured:
            self._programs.run(key, program, changes)
        else:
            program()


def rows_bucket(rows: int) -> int:
    """Rows of the pass that holds so many: few sizes, each little more than what is needed."""
    for bucket in _FINE_ROWS:
        if rows <= bucket:
            return bucket
    return -(-rows // _COARSE_STEP) * _COARSE_STEP


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
