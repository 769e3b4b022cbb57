"""What a request is drafted with: a tree, a chain, or nothing, and why not a tree.

A tree's rows share their ancestors, so whoever needs the tokens before a row gets a chain, where
the rows before it are the tokens before it. The choice is made for each request alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """What a request is drafted with."""

    TREE = "tree"
    CHAIN = "chain"
    PLAIN = "plain"


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """Of a request's sampling parameters what decides its shape."""

    penalties: bool = False
    """A repetition, frequency or presence penalty."""
    bad_words: bool = False
    structured_output: bool = False
    thinking_budget: bool = False
    logprob_token_ids: bool = False
    """Log-probabilities of named tokens."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A shape, and the reason if it is no tree."""

    shape: Shape
    reason: str | None = None


def choose(asked: Asked) -> Choice:
    """The shape of a request; the most confining need decides."""
    if asked.thinking_budget:
        return Choice(Shape.PLAIN, "thinking_budget")
    if asked.logprob_token_ids:
        return Choice(Shape.PLAIN, "logprob_token_ids")
    for name in ("structured_output", "penalties", "bad_words"):
        if getattr(asked, name):
            return Choice(Shape.CHAIN, name)
    return Choice(Shape.TREE)
