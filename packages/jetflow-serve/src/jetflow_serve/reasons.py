"""What a request is drafted with: a tree, a chain, or nothing, and why not a tree.

A tree's rows share their ancestors, so whoever needs the tokens before a row gets a chain, where
the rows before it are the tokens before it. The choice is made for each request alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Shape(StrEnum):
    """What a request is drafted with."""

    TREE = "tree"
    CHAIN = "chain"
    PLAIN = "plain"


REASONS = {
    "structured_output": Shape.CHAIN,
    "penalties": Shape.CHAIN,
    "bad_words": Shape.CHAIN,
    "thinking_budget": Shape.PLAIN,
    "logprob_token_ids": Shape.PLAIN,
    "off": Shape.PLAIN,
    "no budget": Shape.PLAIN,
}
"""Every reason not to draft a tree, with what is drafted instead."""
_NEEDS = ("thinking_budget", "logprob_token_ids", "structured_output", "penalties", "bad_words")
"""Fields of what was asked, the most confining first."""


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
    budget: object = None
    """The request's own budget, as it was given; None: it gave none."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A shape, the reason if it is no tree, and the request's own limit."""

    shape: Shape
    reason: str | None = None
    budget: int | None = None
    """Most rows of a verify pass, root included; None: the engine's."""


def choose(asked: Asked) -> Choice:
    """The shape of a request; the most confining need decides.

    A request may give a budget of its own, 1 or "off" for none; what is neither is no reason to
    stop an engine, so such a request is decoded without drafts and counted.
    """
    if asked.budget is None:
        return _by_needs(asked)
    if asked.budget == "off":
        return _because("off")
    # A truth value is an int too, and no budget.
    if type(asked.budget) is not int or asked.budget < 1:
        return _because("no budget")
    if asked.budget == 1:
        return _because("off")
    return replace(_by_needs(asked), budget=asked.budget)


def _by_needs(asked: Asked) -> Choice:
    for name in _NEEDS:
        if getattr(asked, name):
            return _because(name)
    return Choice(Shape.TREE)


def _because(reason: str) -> Choice:
    return Choice(REASONS[reason], reason)
