"""``jetflow tree``: the draft trees of a few rounds, drawn with their accepted paths."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from jetflow_core.commands.growing import GrowOptions
from jetflow_core.commands.models import ModelOptions

# As many rows as can be read at a glance.
_TREES = GrowOptions(budget="16")
_MODELS = ModelOptions()


def command(
    prompt: Annotated[str, Parameter(help="Text to answer.")],
    *,
    models: ModelOptions = _MODELS,
    trees: GrowOptions = _TREES,
    rounds: Annotated[int, Parameter(help="Rounds to draw.")] = 3,
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
    from jetflow_core.commands.drawing import draw
    from jetflow_core.commands.screen import Screen

    if rounds < 1:
        raise ValueError(f"rounds {rounds} is out of range: at least 1")
    with Screen() as screen:
        draw(prompt, models, trees, screen, rounds=rounds, style=format, chat=not raw)
