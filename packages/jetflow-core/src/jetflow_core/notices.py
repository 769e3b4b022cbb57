"""What an engine tells once, by a warning in the log, because a user would not notice it."""

from __future__ import annotations

import logging

from jetflow_core.head.checkpoint import LoadedHead
from jetflow_core.target import Target
from jetflow_core.unused_defaults import unused_defaults

_LOG = logging.getLogger(__name__)


class Notices:
    """The notices about one target and its head; each is told at most once."""

    def __init__(self, target: Target, head: LoadedHead | None) -> None:
        self._unused = unused_defaults(target.generation_config)
        self._reach = None if head is None else head.config.max_position_embeddings

    def before(self, longest: int) -> None:
        """Tells what requests that may grow to ``longest`` tokens should know."""
        if self._unused:
            asked = ", ".join(f"{name} = {value!r}" for name, value in self._unused.items())
            _LOG.warning(
                "the target's generation config has defaults that are not applied; "
                "ask for what you want of them in the request: %s",
                asked,
            )
            self._unused = {}
        if self._reach is not None and longest > self._reach:
            _LOG.warning(
                "the draft head reaches %d positions and a request may grow to %d: "
                "rounds past its reach are plain steps",
                self._reach,
                longest,
            )
            self._reach = None
