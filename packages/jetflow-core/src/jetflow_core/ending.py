"""Where a request ends, and the text that is certain so far; fed token by token."""

from __future__ import annotations

from collections.abc import Sequence

from jetflow_core.sampling import SamplingParams
from jetflow_core.stopping import FinishReason, StopRule
from jetflow_core.text import TextDecoder, TextStream


class Ending:
    """Joins the stop rule with the text stream that finds stop strings.

    Args:
        params: the request's rules.
        eos_ids: the target's end-of-sequence ids.
        tokenizer: turns tokens into text; None where only tokens matter.

    Raises:
        ValueError: stop strings without a tokenizer.
    """

    def __init__(
        self, params: SamplingParams, eos_ids: Sequence[int], tokenizer: TextDecoder | None
    ) -> None:
        if params.stop and tokenizer is None:
            raise ValueError(f"stop strings {params.stop} need a tokenizer; this target has none")
        self._rule = StopRule(params, eos_ids)
        self._text = (
            None if tokenizer is None else TextStream(tokenizer, params.stop, params.min_new_tokens)
        )

    def feed(self, generated: Sequence[int]) -> tuple[FinishReason | None, str]:
        """What the newest of ``generated`` does: the reason if it ends the request, new text."""
        delta = ""
        found = False
        ends = self._rule.ends_text(generated)
        if self._text is not None and not ends:
            delta = self._text.push(generated[-1])
            found = self._text.stopped
        reason = self._rule.after(generated, stop_string_found=found)
        return reason, delta

    def flush(self) -> str:
        """The text held back until now; call it once, after the end."""
        return "" if self._text is None else self._text.flush()
