"""When an answer ends, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from jetflow_core.sampling import SamplingParams

FinishReason = Literal["stop", "length"]
"""`stop`: a stopping id or string came. `length`: the token limit or the context's end came."""


class StopRule:
    """Says after each generated token whether the answer ends with it.

    A stop inside the limit is a stop, also on the last allowed token. A stopping id is one of the
    tokens of the answer, and counts; it is no part of its text.

    Args:
        params: The request's parameters.
        eos_ids: The model's end-of-sequence ids.
    """

    def __init__(self, params: SamplingParams, eos_ids: Sequence[int]) -> None:
        self.stopping_ids = params.stopping_ids(eos_ids)
        self._min = params.min_new_tokens
        self._max = params.max_new_tokens

    def at_start(self) -> FinishReason | None:
        """`length` for a request of no tokens: it ends before its first one."""
        return "length" if self._max == 0 else None

    def ends_text(self, generated: Sequence[int]) -> bool:
        """Whether the last of `generated` is a stopping id, past `min_new_tokens`."""
        return len(generated) > self._min and generated[-1] in self.stopping_ids

    def after(
        self, generated: Sequence[int], *, stop_string_found: bool = False
    ) -> FinishReason | None:
        """Why the answer ends with the last of `generated`, or None if it goes on.

        Args:
            generated: The answer's tokens so far, the newest last, at least one. Feed them one
                by one, also those accepted together.
            stop_string_found: Whether the text now holds a stop string (see `TextStream`).
        """
        if self.ends_text(generated) or stop_string_found:
            return "stop"
        return "length" if len(generated) >= self._max else None
