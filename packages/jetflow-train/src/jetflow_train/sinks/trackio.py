"""A run in trackio: in its database on this machine, nothing goes over a network."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jetflow_train.sinks.base import numbers

if TYPE_CHECKING:
    from trackio.run import Run

PROJECT = "jetflow"
# trackio would send to a server that one of these names.
_ELSEWHERE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")


class Trackio:
    """Scalars for ``trackio show``, under a run of the project ``jetflow``.

    Args:
        name: of the run; one that is there already is gone on with.

    Raises:
        ValueError: the environment asks trackio to send figures to a server.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        for variable in _ELSEWHERE:
            if os.environ.get(variable):
                raise ValueError(
                    f"runs are tracked on this machine only, but {variable} is set: unset it, or "
                    "leave out --track trackio"
                )
        self._run: Run | None = None

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Logs every number."""
        if self._run is None:
            with _quiet():
                import trackio

                self._run = trackio.init(
                    project=PROJECT,
                    name=self.name,
                    resume="allow",
                    embed=False,
                    auto_log_gpu=False,
                    auto_log_cpu=False,
                )
        self._run.log(metrics=numbers(values), step=step)

    def close(self) -> None:
        """Waits until everything is in the database."""
        if self._run is not None:
            with _quiet():
                import trackio

                # Not the run's own: trackio would finish it once more, and say so, at exit.
                trackio.finish()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # trackio prints advertisements of its dashboard.
    with contextlib.redirect_stdout(io.StringIO()):
        yield
