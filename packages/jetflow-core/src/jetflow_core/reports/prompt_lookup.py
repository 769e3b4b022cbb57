"""What copying alone would gain on a finished text: the yardstick beside every tau."""

from __future__ import annotations

from collections.abc import Sequence


def prompt_lookup_rounds(
    prompt: Sequence[int], tokens: Sequence[int], *, ngram: int = 3, max_draft: int = 10
) -> int:
    """Rounds that prompt lookup would need to write ``tokens`` after ``prompt``.

    Each round drafts what followed the earliest earlier occurrence of the last ``ngram`` tokens,
    keeps the part that is right, and adds one token of the target.

    Args:
        prompt: token ids.
        tokens: the finished continuation.
        ngram: tokens that must match.
        max_draft: most tokens drafted a round.

    Raises:
        ValueError: ``ngram`` or ``max_draft`` is below 1.
    """
    for name, value in (("ngram", ngram), ("max_draft", max_draft)):
        if value < 1:
            raise ValueError(f"{name} {value} is out of range: at least 1")
    text = [*prompt, *tokens]
    followed_by: dict[tuple[int, ...], int] = {}
    known_to, at, rounds = ngram, len(prompt), 0
    while at < len(text):
        for end in range(known_to, at):
            followed_by.setdefault(tuple(text[end - ngram : end]), end)
        known_to = max(known_to, at)
        source = followed_by.get(tuple(text[at - ngram : at])) if at >= ngram else None
        kept = 0 if source is None else _agreeing(text, source, at, max_draft)
        at, rounds = at + kept + 1, rounds + 1
    return rounds


def prompt_lookup_tau(
    prompt: Sequence[int], tokens: Sequence[int], *, ngram: int = 3, max_draft: int = 10
) -> float:
    """Tokens per round of prompt lookup on a finished text; 0.0 for an empty one.

    See ``prompt_lookup_rounds``.
    """
    rounds = prompt_lookup_rounds(prompt, tokens, ngram=ngram, max_draft=max_draft)
    return len(tokens) / rounds if rounds else 0.0


def _agreeing(text: Sequence[int], source: int, at: int, max_draft: int) -> int:
    """How many drafted tokens are right: the draft ends where the known text (``at``) ends."""
    most = min(max_draft, at - source, len(text) - at)
    for count in range(most):
        if text[source + count] != text[at + count]:
            return count
    return most
