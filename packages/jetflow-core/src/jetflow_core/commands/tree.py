"""``jetflow tree``: the draft trees of a few rounds, drawn with their accepted paths."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from jetflow_core.commands.growing import GrowOptions
from jetflow_core.commands.models import ModelOptions
from jetflow_core.commands.numbers import whole
from jetflow_core.commands.texts import checked_prompts

# As many rows as can be read at a glance.
_TREES = GrowOptions(budget="16")
_MODELS = ModelOptions()


def command(
    *prompt: Annotated[str, Parameter(name="PROMPT", help="Text to answer.")],
    models: ModelOptions = _MODELS,
    trees: GrowOptions = _TREES,
    rounds: Annotated[int, whole(1, 10_000), Parameter(help="Rounds to draw.")] = 3,
    format: Annotated[
        Literal["text", "dot", "mermaid"], Parameter(help="How to draw them.")
    ] = "text",
    raw: Annotated[
        bool, Parameter(help="Continue the text as it is, without a chat template.")
    ] = False,
) -> None:
    """Draw the draft trees of the first rounds, with probabilities and the accepted path.

    Decoding is greedy. The percentage of a node is the chance that the draft head gives to its
    whole path; what the target accepted is marked, and its own next token follows.
    """
    if len(prompt) != 1:
        raise ValueError(f"{len(prompt) or 'no'} prompts: give one text to answer")
    (text,) = checked_prompts(prompt)
    models.check()
    trees.check()
    # Only now: the models' libraries take seconds to import.
    from jetflow_core.commands.drawing import draw
    from jetflow_core.commands.screen import Screen

    with Screen() as screen:
        draw(text, models, trees, screen, rounds=rounds, style=format, chat=not raw)
