"""A progress bar on the error stream, so that results on the output stay clean."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Advance = Callable[[], None]


@contextmanager
def bar(title: str, total: int) -> Iterator[Advance]:
    """A bar of ``total`` steps; call what it gives after each."""
    columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)
