"""One entry of the table of vLLM's hooks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hook:
    """One place where JetFlow attaches to vLLM."""

    module: str
    """Dotted name of the module."""
    attribute: str
    """A name in the module, or ``Class.name`` for a method, a field or a constant of a class."""
    why: str
    """What it is used for."""
    parameters: tuple[str, ...] | None = None
    """Parameter names after ``self``; None where no signature is relied upon."""
