"""What the host keeps of a request while it runs, and what a round gave it."""

from __future__ import annotations

from dataclasses import dataclass

from jetflow_core.rounds.requests import Finished, RoundRequest
from jetflow_core.stopping import FinishReason


@dataclass(frozen=True, slots=True)
class Step:
    """What one round gave one request."""

    request: int
    """Its place in the list of requests."""
    tokens: tuple[int, ...]
    """At least one; a stop token is the last and included."""
    text: str
    """Text that became certain."""
    finish: FinishReason | None
    """None while the request goes on."""
    accepted: int
    """Drafted rows that the walk kept, also those behind an end."""
    rows: int
    """Rows of its tree, the root included."""


@dataclass(slots=True, eq=False)
class Job:
    """One request at work or waiting."""

    index: int
    request: RoundRequest
    result: Finished
    limit: int
    """Tokens that it may get: its own limit or the context's."""
    slot: int | None = None
    arrival: int = 0
    """Rises with every admission; whoever has the highest one is preempted first."""
    filled: int = 0
    """Rows of the prompt in the cache, while it is read."""
    live: bool = False
    """Whether it decodes: its prompt is in the cache and it has not ended."""
    flights: int = 0
    """Rounds under way that it takes part in."""

    @property
    def context(self) -> tuple[int, ...]:
        """Prompt and answer so far; the last token is the root."""
        return (*self.request.prompt, *self.result.tokens)

    @property
    def committed(self) -> int:
        """Rows in the cache as far as rounds have been read."""
        return len(self.request.prompt) + len(self.result.tokens) - 1

    @property
    def most_rows(self) -> int:
        """More committed rows than this there will never be."""
        return len(self.request.prompt) + self.limit - 1

    @property
    def surely_ending(self) -> bool:
        """Whether the rounds under way end it anyway: each gives at least one token."""
        return self.limit - len(self.result.tokens) <= self.flights

    def in_slot(self) -> int:
        """The slot of a job that has one.

        Raises:
            RuntimeError: it has none.
        """
        if self.slot is None:
            raise RuntimeError(f"request {self.index} is in no slot")
        return self.slot

    def take(self, tokens: list[int]) -> tuple[tuple[int, ...], str]:
        """Adds tokens of a round up to the request's end.

        Returns:
            Those that count, and the text that they made certain.
        """
        result, ending, pieces, start = (
            self.result,
            self.request.ending,
            [],
            len(self.result.tokens),
        )
        for token in tokens:
            result.tokens.append(token)
            result.finish, piece = ending.feed(result.tokens)
            pieces.append(piece)
            if result.finish is None and len(result.tokens) >= self.limit:
                result.finish = "length"
            if result.finish is not None:
                pieces.append(ending.flush())
                break
        text = "".join(pieces)
        result.text += text
        result.rounds += 1
        return tuple(result.tokens[start:]), text
