"""What the terminal shows: streamed text in two colours, lines of progress on stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.status import Status

ACCEPTED_STYLE = "green"


class Screen:
    """Standard output and the progress beside it; colours only on a terminal that wants them."""

    def __init__(self) -> None:
        self._out = Console(highlight=False, soft_wrap=True, markup=False)
        self._err = Console(stderr=True, highlight=False, markup=False)
        self._status: Status | None = None
        self._heading = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.done()

    def progress(self, line: str) -> None:
        """Shows a step that lasts, on a terminal, until ``done`` or the next step."""
        if not self._err.is_terminal:
            return
        if self._status is None:
            self._status = self._err.status(line)
            self._status.start()
        else:
            self._status.update(line)

    def done(self) -> None:
        """Takes the progress away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def heading(self, text: str) -> None:
        """A line that is shown before whatever comes next, and never if nothing does."""
        self._heading = text

    def piece(self, text: str, accepted: bool) -> None:
        """Text as it comes; accepted tokens coloured."""
        self._begin()
        if self._out.is_terminal:
            self._out.out(text, style=ACCEPTED_STYLE if accepted else None, end="")
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def line(self, text: str = "", style: str | None = None) -> None:
        """A line of its own; the style shows on a terminal only."""
        self._begin()
        self._print(text, style)

    def show(self, drawing: RenderableType) -> None:
        """A drawing of rich, on a terminal."""
        self._begin()
        self._out.print(drawing)

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks at it."""
        return self._out.is_terminal

    def _begin(self) -> None:
        self.done()
        if self._heading:
            heading, self._heading = self._heading, ""
            self._print(heading, "bold")

    def _print(self, text: str, style: str | None) -> None:
        if self._out.is_terminal:
            self._out.print(text, style=style)
        else:
            print(text)
