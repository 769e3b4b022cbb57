"""Which pages of the cache each slot holds: a free list on the host, page tables for the device.

A slot's pages hold its committed rows and, behind them, the rows of the tree that is verified. The
pages behind the committed rows are scratch: what a round rejects is overwritten by the next one,
and the pages go back to the free list when the slot needs fewer or none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class PageTables:
    """The pages of all slots.

    Attributes:
        page: rows of a page.
        table: int32 ``[slots, width]``; entries past a slot's last page are 0 and mean nothing.

    Args:
        pages: pages of every pool.
        page: rows of a page.
        slots: requests held at once.
        longest: most rows that one slot needs, scratch included.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, *, pages: int, page: int, slots: int, longest: int) -> None:
        for name, number in (
            ("pages", pages),
            ("page", page),
            ("slots", slots),
            ("longest", longest),
        ):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}")
        self.page, self._pages = page, pages
        self.table: NDArray[np.int32] = np.zeros((slots, -(-longest // page)), dtype=np.int32)
        self._held: list[list[int]] = [[] for _ in range(slots)]
        # The last one is taken first.
        self._free = list(range(pages))[::-1]

    @property
    def num_pages(self) -> int:
        """Pages in all."""
        return self._pages

    @property
    def num_free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def pages_for(self, rows: int) -> int:
        """Pages that hold so many rows."""
        return -(-rows // self.page)

    def held(self, slot: int) -> Sequence[int]:
        """The slot's pages in the order of its rows."""
        return tuple(self._held[slot])

    def reserve(self, slot: int, rows: int) -> bool:
        """Gives the slot room for ``rows`` rows in all; False, and nothing, if pages are short.

        Raises:
            ValueError: a slot cannot hold so many.
        """
        wanted, held = self.pages_for(rows), self._held[slot]
        if wanted > self.table.shape[1]:
            raise ValueError(
                f"{rows} rows need {wanted} pages, a slot has at most {self.table.shape[1]}"
            )
        missing = wanted - len(held)
        if missing > len(self._free):
            return False
        for _ in range(missing):
            self.table[slot, len(held)] = self._free[-1]
            held.append(self._free.pop())
        return True

    def trim(self, slot: int, rows: int) -> None:
        """Frees the slot's pages behind the first ``rows`` rows."""
        held = self._held[slot]
        while len(held) > self.pages_for(rows):
            self._free.append(held.pop())
            self.table[slot, len(held)] = 0

    def release(self, slot: int) -> None:
        """Frees all pages of the slot."""
        self.trim(slot, 0)

    def move(self, source: int, goal: int) -> None:
        """All pages of one slot go to another.

        Raises:
            ValueError: that one has pages of its own.
        """
        if self._held[goal]:
            raise ValueError(f"slot {goal} still holds pages {self._held[goal]}")
        self._held[goal], self._held[source] = self._held[source], []
        self.table[goal], self.table[source] = self.table[source], 0

    def check(self) -> None:
        """Raises RuntimeError unless every page is free or held by one slot, as its table says."""
        everywhere = self._free + [number for held in self._held for number in held]
        if sorted(everywhere) != list(range(self._pages)):
            raise RuntimeError(f"pages are lost or held twice: {sorted(everywhere)}")
        for slot, held in enumerate(self._held):
            if self.table[slot, : len(held)].tolist() != held:
                raise RuntimeError(f"the table of slot {slot} is not that of its pages {held}")


def pages_in(memory: int, *, page: int, row_bytes: int) -> int:
    """Pages of a cache that takes at most so much memory.

    Args:
        memory: bytes for all pools together.
        page: rows of a page.
        row_bytes: bytes of one row in all pools together.

    Raises:
        ValueError: not even one page fits.
    """
    pages = memory // (page * row_bytes)
    if pages < 1:
        raise ValueError(
            f"{memory} bytes hold no page of {page} rows of {row_bytes} bytes; at least "
            f"{page * row_bytes} are needed"
        )
    return pages
