"""Texts that end in a loop: where the loop begins, and tau without it.

A looping text flatters every drafter, because copying is easy. So a report says how much of its
text loops, and what tau is without that part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LONGEST_PERIOD = 40
FEWEST_REPEATED = 20

LOOP_DEFINITION = (
    f"a text loops if its tail is periodic with a period of at most {LONGEST_PERIOD} tokens and "
    f"at least {FEWEST_REPEATED} of its tokens repeat the ones a period before; the tail begins "
    "at the first repeated token"
)


def looping_tail(tokens: Sequence[int]) -> int:
    """Index of the first token of the looping tail, or ``len(tokens)`` if the text does not loop.

    The loop's first period is not part of the tail: it repeats nothing.
    """
    start = min(
        (_first_repeated(tokens, period) for period in range(1, LONGEST_PERIOD + 1)),
        default=len(tokens),
    )
    return start if len(tokens) - start >= FEWEST_REPEATED else len(tokens)


def _first_repeated(tokens: Sequence[int], period: int) -> int:
    start = len(tokens)
    while start > period and tokens[start - 1] == tokens[start - 1 - period]:
        start -= 1
    return start


def loop_share(texts: Iterable[Sequence[int]]) -> float:
    """Share of all tokens of ``texts`` that lie in looping tails; 0.0 without tokens."""
    looping = total = 0
    for tokens in texts:
        total += len(tokens)
        looping += len(tokens) - looping_tail(tokens)
    return looping / total if total else 0.0


def before_loop(round_sizes: Sequence[int], start: int) -> tuple[int, int]:
    """Tokens and rounds of the rounds that begin before token ``start``.

    A round that begins before the loop counts whole, so that no round is cut short.

    Args:
        round_sizes: tokens that each round gave, in order.
        start: index of the first looping token, from ``looping_tail``.
    """
    tokens = rounds = 0
    for size in round_sizes:
        if tokens >= start:
            break
        tokens, rounds = tokens + size, rounds + 1
    return tokens, rounds


def tau_without_loops(texts: Iterable[tuple[Sequence[int], Sequence[int]]]) -> float:
    """Tokens per round over all ``texts``, their looping tails left out; 0.0 without rounds.

    Args:
        texts: for each text its tokens, and how many of them each round gave.
    """
    tokens = rounds = 0
    for text, round_sizes in texts:
        some_tokens, some_rounds = before_loop(round_sizes, looping_tail(text))
        tokens, rounds = tokens + some_tokens, rounds + some_rounds
    return tokens / rounds if rounds else 0.0
