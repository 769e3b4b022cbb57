"""Text that streams: certain as soon as it is shown, and cut before the first stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jetflow_core.pieces import TextDecoder, pieces_of

__all__ = ["TextDecoder", "TextStream"]


class TextStream:
    """Turns the tokens of one answer into text, piece by piece.

    All that `push` returned, then what `flush` returns, is
    `tokenizer.decode(ids, skip_special_tokens=True)` of the tokens so far, cut before the first
    stop string. The answer ends with the first token after which that text holds one, wherever
    in the token it begins or ends; `stopped` then is True and further tokens are ignored. Held
    back is only what a later token could change: an unfinished character, and the end of the text
    if a stop string begins so. The work a token takes does not grow with the text.

    Tokenizers that are neither byte-level nor made of independent pieces cannot be streamed
    exactly: `incremental` is False, and their text comes with `flush` or the stop string.

    Args:
        tokenizer: A tokenizer of transformers or tokenizers, or anything with their `decode`.
        stop: Strings that end the answer, as `SamplingParams` allows them.
        min_new_tokens: A stop string counts only if its end came with token number
            `min_new_tokens` (from 1) or later.
    """

    def __init__(
        self, tokenizer: TextDecoder, stop: Sequence[str] = (), min_new_tokens: int = 0
    ) -> None:
        self._pieces = pieces_of(tokenizer)
        self._stop = tuple(stop)
        self._min = min_new_tokens
        self._count = 0
        self._emitted = 0
        self._held = ""
        # Text before this offset was there before stop strings count.
        self._floor = 0
        self._flushed = False
        self._found: str | None = None

    @property
    def incremental(self) -> bool:
        """Whether text comes while the tokens do, not only at the end."""
        return self._pieces.incremental

    @property
    def stopped(self) -> bool:
        """Whether the text has come to a stop string."""
        return self._found is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, or None; of several at one place the first given."""
        return self._found

    def push(self, token: int) -> str:
        """The text that `token` makes certain, perhaps none.

        Raises:
            RuntimeError: The stream was flushed.
        """
        if self._flushed:
            raise RuntimeError("the text stream was flushed and takes no further tokens")
        if self.stopped:
            return ""
        self._count += 1
        self._held += self._pieces.push(token)
        if self._stop:
            self._look_for_stop()
        return self._release(len(self._held) if self.stopped else self._certain())

    def extend(self, tokens: Iterable[int]) -> str:
        """The text that `tokens` make certain; those after a stop string are ignored."""
        return "".join([self.push(token) for token in tokens])

    def flush(self) -> str:
        """The rest of the text, after the last token; nothing if it was called before."""
        if self._flushed:
            return ""
        self._flushed = True
        if not self.stopped:
            self._held += self._pieces.pending()
        return self._release(len(self._held))

    def _look_for_stop(self) -> None:
        pending = self._pieces.pending()
        if self._count < self._min:
            # A replacement character at the end may still become another one.
            self._floor = self._emitted + len((self._held + pending).rstrip("\ufffd"))
            return
        found = self._first_stop(self._held + pending)
        if found is not None:
            place, self._found = found
            self._held = (self._held + pending)[:place]

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        """Place and string of the first stop string in `text`, which begins where `_held` does."""
        places = []
        for rank, stop in enumerate(self._stop):
            place = text.find(stop, max(0, self._floor - self._emitted - len(stop) + 1))
            if place >= 0:
                places.append((place, rank))
        if not places:
            return None
        place, rank = min(places)
        return place, self._stop[rank]

    def _certain(self) -> int:
        """How much of the held text no stop string can begin in any more."""
        size = len(self._held)
        longest = max(map(len, self._stop), default=1) - 1
        for start in range(max(0, size - longest), size):
            tail = self._held[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self._stop):
                return start
        return size

    def _release(self, size: int) -> str:
        text, self._held = self._held[:size], self._held[size:]
        self._emitted += size
        return text
