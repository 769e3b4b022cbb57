"""``jetflow doctor``: whether a head fits its target and drafts what it was trained to draft."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from jetflow_core.commands.models import ModelOptions

_MODELS = ModelOptions()


def command(
    *,
    models: ModelOptions = _MODELS,
    json: Annotated[bool, Parameter(help="Print everything as JSON instead of a table.")] = False,
) -> int:
    """Check that a draft head fits its target: ok, unclear, weak head, or wiring fault.

    Compares sizes, layer count, vocabulary and tokenizer; then lets the target answer a few
    prompts and counts how often the head's best token at each depth is the target's, against what
    was stored when the head was trained and against wirings that should be wrong. Exit code 0: ok;
    1: any other verdict; 2: the two do not fit, or cannot be loaded.
    """
    from jetflow_core.commands.screen import Screen
    from jetflow_core.commands.visit import visit

    with Screen() as screen:
        return visit(models, screen, as_json=json)
